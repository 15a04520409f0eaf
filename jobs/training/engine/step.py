"""One optimizer step: gather, forward, backward, update. The same code, eager and captured."""

from dataclasses import dataclass
from typing import Any

import torch

from jobs.training.config import TrainingConfig
from jobs.training.engine.feed import Feed
from jobs.training.engine.objective import OBJECTIVES
from jobs.training.engine.schedule import Schedule
from jobs.training.engine.update import Update
from jobs.training.model.parallel import gradient_sync
from jobs.training.model.precision import autocast
from jobs.training.world import World

LOSSES_KEPT = 4096
"""Losses that stay on the device; the host reads them long before they are overwritten."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """The parts of an optimizer step, and the step itself."""

    config: TrainingConfig
    world: World
    model: Any
    """As it is called: with gradient sync where there are several workers."""
    feed: Feed
    schedule: Schedule
    update: Update
    losses: torch.Tensor
    """(LOSSES_KEPT,): this worker's share of each step's mean loss, by step modulo its size."""
    counter: torch.Tensor
    """(1,): steps run since the start of this process."""

    def run(self, width: int, *, sync: bool = True) -> None:
        """Do the step that the schedule is at, on rows padded to `width`; never waits.

        With `sync` off workers keep their own gradients, which only timing may want.
        """
        total = self.schedule.total()
        self.update.lr.copy_(self.schedule.learning_rate())
        self.update.clear()
        loss = torch.zeros((), dtype=torch.float32, device=self.world.device)
        # a wrapper averages gradients over workers, where the mean over samples wants their sum
        averaged_over = 1 if self.update.exchanges else self.world.size
        factor = self.update.loss_scale.to(loss.device) * (averaged_over / total)
        objective = OBJECTIVES[self.config.model.task]
        for number, (batch, weights) in enumerate(self.feed.batches(width), start=1):
            is_synced = sync and number == self.schedule.passes
            if is_synced:
                self.update.arm()
            with gradient_sync(self.model, enabled=is_synced):
                with autocast(self.config.precision, self.world.device):
                    part = objective(self.model, batch, weights)
                torch.autograd.backward(part * factor)
            loss += part.detach()
        self.update.apply(exchanged=sync)
        slot = self.counter % LOSSES_KEPT
        self.losses.index_copy_(0, slot, (loss / total)[None])
        self.counter.add_(1)
        self.schedule.advance()
