"""One optimizer step: gather, forward, backward, update. The same code, eager and captured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from jobs.training.config import TrainingConfig
from jobs.training.engine.batch_plan import BatchPlan
from jobs.training.engine.device_loader import Batch, DeviceLoader
from jobs.training.engine.update import Update
from jobs.training.model.parallel import gradient_sync
from jobs.training.model.precision import autocast
from jobs.training.world import World

LOSSES_KEPT = 4096
"""Losses that stay on the device; the host reads them long before they are overwritten."""


Objective = Callable[[Any, Batch, torch.Tensor], torch.Tensor]
"""Of a model, a batch and the rows' weights: the loss summed over everything that counts."""
UNROLLED = 3
"""Passes of a step up to which it is one piece; longer ones repeat the pass in their middle."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a step that is the same however often it is run."""

    run: Callable[[], None]
    times: int = 1
    """How often in a step."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """The parts of an optimizer step, and the step itself."""

    config: TrainingConfig
    world: World
    model: Any
    """As it is called: with gradient sync where there are several workers."""
    feed: DeviceLoader
    schedule: BatchPlan
    update: Update
    objective: Objective
    losses: torch.Tensor
    """(LOSSES_KEPT,): this worker's share of each step's mean loss, by step modulo its size."""
    loss: torch.Tensor
    """(): summed over the passes of the current step."""
    counter: torch.Tensor
    """(1,): steps run since the start of this process."""

    def run(self, width: int, *, sync: bool = True) -> None:
        """Do the step that the schedule is at, on rows padded to `width`; never waits.

        With `sync` off workers keep their own gradients, which only timing may want.
        """
        self._begin()
        last = self.schedule.passes - 1
        for number, (batch, weights) in enumerate(self.feed.batches(width)):
            self._pass(batch, weights, is_synced=sync and number == last)
        self._end(sync=sync)

    def pieces(self, width: int, *, sync: bool = True) -> list[Piece]:
        """The same step, for rows on the device, in pieces to be run one after the other."""
        if self.schedule.passes <= UNROLLED:
            return [Piece(lambda: self.run(width, sync=sync))]

        def next_pass(*, is_synced: bool) -> None:
            self._pass(*self.feed.next_batch(width), is_synced=is_synced)

        def first() -> None:
            self._begin()
            next_pass(is_synced=False)

        def last() -> None:
            next_pass(is_synced=sync)
            self._end(sync=sync)

        middle = Piece(lambda: next_pass(is_synced=False), self.schedule.passes - 2)
        return [Piece(first), middle, Piece(last)]

    def _begin(self) -> None:
        self.update.lr.copy_(self.schedule.learning_rate())
        self.update.begin()
        self.loss.zero_()

    def _pass(self, batch: Batch, weights: torch.Tensor, *, is_synced: bool) -> None:
        # a wrapper averages gradients over workers, where the mean over samples wants their sum
        averaged_over = 1 if self.update.exchanges else self.world.size
        factor = self.update.loss_scale.to(self.loss.device)
        factor = factor * (averaged_over / self.schedule.total())
        if is_synced:
            self.update.arm()
        with gradient_sync(self.model, enabled=is_synced):
            with autocast(self.config.precision, self.world.device):
                part = self.objective(self.model, batch, weights)
            self.update.fetched()
            torch.autograd.backward(part * factor)
        self.loss.add_(part.detach())

    def _end(self, *, sync: bool) -> None:
        self.update.apply(exchanged=sync)
        slot = self.counter % LOSSES_KEPT
        self.losses.index_copy_(0, slot, (self.loss / self.schedule.total())[None])
        self.counter.add_(1)
        self.schedule.advance()
