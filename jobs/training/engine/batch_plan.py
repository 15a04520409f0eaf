"""All inputs that differ from step to step, stored on the device before an epoch starts."""

import math
from collections import Counter

import numpy as np
import torch

from jobs.training.config import TrainingConfig
from jobs.training.data import batches
from jobs.training.data.batches import FILLER, Indices
from jobs.training.data.tokens import TokenSet
from jobs.training.engine.learning_rate import rate_at
from jobs.training.world import World

REPLAYED_EPOCHS = 10
"""Epochs whose batches are computed to count widths; later epochs have almost the same counts."""

WIDTHS_SEED = 42
"""Draws the batches by which padded widths are chosen: runs that differ in their seed share them,
and with them the steps that are captured or compiled."""


class BatchPlan:
    """Rows, row weights, loss denominators and learning rates of all steps, indexed on the device.

    A counter on the device selects the current step. The host gives only the padded width, so that
    a captured step can be replayed without preparing its inputs.
    """

    def __init__(self, config: TrainingConfig, tokens: TokenSet, world: World) -> None:
        self._config = config
        self._world = world
        self._lengths = tokens.lengths
        self._targets = tokens.targets
        rows, batch = len(tokens), config.global_batch_size
        self.steps_per_epoch = batches.steps_per_epoch(rows, batch)
        self.total_steps = batches.total_steps(rows, batch, config.epochs)
        longest = batches.batch_lengths(self._batches(0, WIDTHS_SEED), self._lengths)
        self.widths = batches.choose_widths(longest, _widest(self._lengths, config))
        self.passes = batch // (world.size * config.micro_batch_size)
        device = world.device
        shape = (self.steps_per_epoch, self.passes, config.micro_batch_size)
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._weights = torch.zeros(shape, dtype=torch.float32, device=device)
        self._totals = torch.ones(self.steps_per_epoch, dtype=torch.float32, device=device)
        rates = [self.rate(step) for step in range(self.total_steps)]
        self._rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._pass = torch.zeros(1, dtype=torch.int64, device=device)
        self._epoch = -1
        self._own: Indices = np.zeros((0, 0, 0), np.int64)
        self._filled: Indices = np.zeros((0, 0, 0), np.int64)
        self.host_step = 0
        """The next step that the host launches; replays of a captured step do not change it."""
        self._width_of: Indices = np.zeros(0, np.int64)
        self._tokens_of: Indices = np.zeros(0, np.int64)
        self._samples_of: Indices = np.zeros(0, np.int64)

    def use(self, config: TrainingConfig) -> None:
        """Takes the learning rates and the seed of a configuration that differs in nothing else."""
        self._config = config
        self._epoch = -1  # another seed has other batches
        self._rates.copy_(torch.tensor([self.rate(step) for step in range(self.total_steps)]))

    def seek(self, step: int) -> None:
        """Makes the 0-based `step` the next step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._load(epoch)
        self.host_step = step
        self._step.fill_(min(step, self.total_steps - 1))  # a probe may outlast a short run
        self._position.fill_(position)
        self._pass.zero_()

    def rows(self, step: int) -> Indices:
        """Returns the row indices of a step's global batch, (samples,)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        row = self._batches(epoch)[position]
        return np.extract(row != FILLER, row)

    def width(self, step: int) -> int:
        """Returns the padded tokens of each row of a step in the loaded epoch."""
        return int(self._width_of[step % self.steps_per_epoch])

    def steps_of_width(self) -> dict[int, int]:
        """Returns the number of steps of the whole run by padded width."""
        counted: Counter[int] = Counter()
        left = self.total_steps
        for epoch in range(min(REPLAYED_EPOCHS, math.ceil(left / self.steps_per_epoch))):
            longest = batches.batch_lengths(self._batches(epoch), self._lengths)[:left]
            counted.update(batches.fit_widths(longest, self.widths).tolist())
            left -= len(longest)
        scale = self.total_steps / counted.total()
        return {width: round(count * scale) for width, count in sorted(counted.items())}

    def counts(self, step: int) -> tuple[int, int, int]:
        """Returns samples, unpadded tokens and width of a global batch in the loaded epoch."""
        position = step % self.steps_per_epoch
        samples, tokens = int(self._samples_of[position]), int(self._tokens_of[position])
        return samples, tokens, self.width(step)

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step."""
        config = self._config
        return rate_at(step, self.total_steps, config.optimizer.lr, config.lr_schedule)

    def current(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns this worker's rows and weights of the current step, each (passes, micro_batch).

        The weight of a filler row is 0.
        """
        rows = self._rows.index_select(0, self._position)[0]
        return rows, self._weights.index_select(0, self._position)[0]

    def next_pass(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns rows and weights of the current step's next pass, each (micro_batch,)."""
        rows, weights = self.current()
        found = rows.index_select(0, self._pass)[0], weights.index_select(0, self._pass)[0]
        self._pass.add_(1)
        return found

    def on_host(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns rows and weights of a step of the loaded epoch, in host memory."""
        place = step % self.steps_per_epoch
        is_real = torch.from_numpy(self._own[place] != FILLER)
        return torch.from_numpy(self._filled[place]), is_real.float()

    def is_loaded(self, step: int) -> bool:
        """Returns whether a step belongs to the loaded epoch."""
        return step // self.steps_per_epoch == self._epoch

    def total(self) -> torch.Tensor:
        """Returns the denominator of the current step's mean loss: samples or response tokens."""
        return self._totals.index_select(0, self._position)[0]

    def learning_rate(self) -> torch.Tensor:
        """Returns the current step's learning rate; after the last step, the last one."""
        return self._rates.index_select(0, self._step)[0]

    def advance(self) -> None:
        """Goes to the next step; stays at the last step, because captures may run past it."""
        self.host_step += 1
        self._step.add_(1).clamp_(max=self.total_steps - 1)
        self._position.add_(1).clamp_(max=self.steps_per_epoch - 1)
        self._pass.zero_()

    def _load(self, epoch: int) -> None:
        all_rows = self._batches(epoch)
        own = batches.own_share(
            all_rows,
            rank=self._world.rank,
            world_size=self._world.size,
            micro_batch_size=self._config.micro_batch_size,
        )
        self._own = own
        real = all_rows != FILLER
        self._filled = batches.filled(own, all_rows.max(axis=1)[:, None, None])
        self._rows.copy_(torch.from_numpy(self._filled))
        self._weights.copy_(torch.from_numpy((own != FILLER).astype(np.float32)))
        totals = np.where(real, self._targets[all_rows], 0).sum(axis=1)
        self._totals.copy_(torch.from_numpy(np.maximum(totals, 1)))
        longest = batches.batch_lengths(all_rows, self._lengths)
        self._width_of = batches.fit_widths(longest, self.widths)
        self._tokens_of = np.where(real, self._lengths[all_rows], 0).sum(axis=1)
        self._samples_of = real.sum(axis=1)
        self._epoch = epoch

    def _batches(self, epoch: int, seed: int | None = None) -> Indices:
        lengths, config = self._lengths, self._config
        if config.data.needs_whole_batch:
            # rows that are each other's negatives are drawn at random, not by length
            lengths = np.zeros_like(lengths)
        seed = config.seed if seed is None else seed
        return batches.epoch_batches(lengths, config.global_batch_size, seed, epoch)


def _widest(lengths: Indices, config: TrainingConfig) -> int:
    """Returns the longest row, rounded up to WIDTH_MULTIPLE but not beyond max_length."""
    multiple = batches.WIDTH_MULTIPLE
    longest = int(lengths.max())
    return max(longest, min(-(-longest // multiple) * multiple, config.data.max_length))
