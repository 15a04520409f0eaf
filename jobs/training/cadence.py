"""When a repeated action, such as an evaluation, is due."""

import math
from dataclasses import dataclass

from jobs.spec.quantities import Cadence
from jobs.training.world import World


@dataclass(slots=True)
class CadenceTimer:
    """Decides when a repeated action is due; all workers get the same result."""

    every: Cadence
    steps_per_epoch: int
    world: World
    last_step: int
    last_time: float

    def next_step(self) -> float:
        """Returns the step after which the action is due next; infinite for cadences in seconds."""
        if self.every.unit == "second":
            return math.inf
        per = self.steps_per_epoch if self.every.unit == "epoch" else 1
        interval = max(1.0, self.every.value * per)
        return math.ceil((int(self.last_step / interval) + 1) * interval)

    def check(self, step: int, now: float) -> bool:
        """Returns whether the action is due after `step` steps at the monotonic time `now`.

        If it is due, the next interval starts.
        """
        if self.every.unit == "second":
            is_due = bool(self.world.broadcast(value=now - self.last_time >= self.every.value))
        else:
            is_due = step >= self.next_step()
        if is_due:
            self.last_step, self.last_time = step, now
        return is_due
