"""How long a probe of one candidate takes."""

from dataclasses import dataclass

LEAST_WINDOWS = 3
"""Windows before a mean counts as known."""


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """When warm-up and timing of a probe end."""

    warmup_s: float
    """Warm-up takes at least this long, and `warmup_steps`, and goes on until windows agree."""
    warmup_limit_s: float
    """Longest warm-up; a probe that reaches it is marked as not steady."""
    duration_s: float
    """Steps are timed for at least this long, in at least three windows and `steps`."""
    limit_s: float
    """Longest timing."""
    warmup_steps: int
    steps: int
    window_s: float
    half_width: float
    """Timing ends when the mean's 95 % half-width is this share of it."""
    tolerance: float = 0.02
    """By how much two windows may differ that count as equally fast."""
