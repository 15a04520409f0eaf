"""The learning rate at each optimizer step."""

import math

from jobs.spec.train import DEFAULT_POWER, LrScheduleSpec

STEPS_OF_SQUARE_ROOT = 10_000
"""Steps after which an inverse square root without warm-up has fallen by a factor of sqrt(2)."""


def rate_at(step: int, total_steps: int, peak: float, schedule: LrScheduleSpec) -> float:
    """Returns the learning rate of the 0-based `step`.

    It rises linearly to `peak` during warm-up, then follows the schedule's shape.
    """
    warmup = math.ceil(total_steps * schedule.warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule.type == "constant":
        return peak
    if schedule.type == "inverse_sqrt":
        scale = warmup or STEPS_OF_SQUARE_ROOT
        return peak * math.sqrt(scale / (step - warmup + scale))
    left = 1 - (step - warmup) / max(1, total_steps - warmup)
    if schedule.type == "cosine":
        shape = (1 + math.cos(math.pi * (1 - left))) / 2
    elif schedule.type == "polynomial":
        shape = left ** (DEFAULT_POWER if schedule.power is None else schedule.power)
    else:
        shape = left
    return peak * (schedule.floor + (1 - schedule.floor) * shape)
