"""The learning rate at each optimizer step."""

import math

from jobs.spec.train import LrScheduleSpec


def rate_at(step: int, total_steps: int, peak: float, schedule: LrScheduleSpec) -> float:
    """Returns the learning rate of the 0-based `step`.

    It rises linearly to `peak` during warm-up, then follows the schedule's shape.
    """
    warmup = math.ceil(total_steps * schedule.warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule.type == "constant":
        return peak
    done = (step - warmup) / max(1, total_steps - warmup)
    if schedule.type == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    return peak * (1 - done)
