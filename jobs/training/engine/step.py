"""One optimizer step: gather, forward, backward, update; the same code eagerly and captured."""

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
"""Losses that are kept on the device; the host reads them long before they are overwritten."""


Objective = Callable[[Any, Batch, torch.Tensor], torch.Tensor]
"""Takes a model, a batch and the rows' weights; returns the loss summed over samples or tokens."""
UNROLLED = 3
"""Most passes of a step that is captured as one piece; longer steps repeat a piece for one pass."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a step that can be captured once and replayed."""

    run: Callable[[], None]
    times: int = 1
    """Replays in each step."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """The parts of an optimizer step, and the step itself."""

    config: TrainingConfig
    world: World
    model: Any
    """The model to call: wrapped for gradient synchronisation if there are several workers."""
    loader: DeviceLoader
    batch_plan: BatchPlan
    update: Update
    objective: Objective
    losses: torch.Tensor
    """(LOSSES_KEPT, 2), at step modulo LOSSES_KEPT: this worker's share of the mean loss, and the
    norm of all workers' gradients before clipping."""
    loss: torch.Tensor
    """(): this worker's summed loss of the current step."""
    counter: torch.Tensor
    """(1,): steps run since the start of this process."""
    keeps_random_states: bool = False
    """Whether layers are computed again from random states that are kept on the host."""

    def run(self, width: int, *, sync: bool = True) -> None:
        """Runs the batch plan's current step on rows padded to `width`; never waits for the device.

        Without `sync`, workers keep their own gradients; only measurements of time use this.
        """
        self._begin()
        last = self.batch_plan.passes - 1
        for number, (batch, weights) in enumerate(self.loader.batches(width)):
            self._pass(batch, weights, is_synced=sync and number == last)
        self._end(sync=sync)

    def pieces(self, width: int, *, sync: bool = True) -> list[Piece]:
        """Returns the step as pieces that run one after the other; rows must be on the device."""
        if self.batch_plan.passes <= UNROLLED:
            return [Piece(lambda: self.run(width, sync=sync))]

        def next_pass(*, is_synced: bool) -> None:
            self._pass(*self.loader.next_batch(width), is_synced=is_synced)

        def first() -> None:
            self._begin()
            next_pass(is_synced=False)

        def last() -> None:
            next_pass(is_synced=sync)
            self._end(sync=sync)

        middle = Piece(lambda: next_pass(is_synced=False), self.batch_plan.passes - 2)
        return [Piece(first), middle, Piece(last)]

    def _begin(self) -> None:
        self.update.lr.copy_(self.batch_plan.learning_rate())
        self.update.begin()
        self.loss.zero_()

    def _pass(self, batch: Batch, weights: torch.Tensor, *, is_synced: bool) -> None:
        # DDP and FSDP average gradients over workers, but the mean over samples needs their sum
        averaged_over = 1 if self.update.exchanges else self.world.size
        factor = self.update.loss_scale.to(self.loss.device)
        factor = factor * (averaged_over / self.batch_plan.total())
        if is_synced:
            self.update.enable_exchange()
        with gradient_sync(self.model, enabled=is_synced):
            with autocast(self.config.precision, self.world.device):
                part = self.objective(self.model, batch, weights)
            self.update.end_forward()
            torch.autograd.backward(part * factor)
        self.loss.add_(part.detach())

    def _end(self, *, sync: bool) -> None:
        norm = self.update.apply(exchanged=sync).to(self.loss.device)
        slot = self.counter % LOSSES_KEPT
        found = torch.stack((self.loss / self.batch_plan.total(), norm))
        self.losses.index_copy_(0, slot, found[None])
        self.counter.add_(1)
        self.batch_plan.advance()
