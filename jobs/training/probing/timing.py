"""The durations and limits of a candidate's probe."""

from dataclasses import dataclass

LEAST_WINDOWS = 3
"""Least number of windows for a mean."""


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """Conditions for the end of a probe's warm-up and timing."""

    warmup_s: float
    """Warm-up lasts at least this long and `warmup_steps`, until two windows are equally fast."""
    warmup_limit_s: float
    """Longest warm-up; a probe that reaches it is marked as not steady."""
    duration_s: float
    """Steps are timed for at least this long, `steps` and LEAST_WINDOWS windows."""
    limit_s: float
    """Longest timing."""
    warmup_steps: int
    """Least number of steps of the warm-up."""
    steps: int
    """Least number of timed steps."""
    window_s: float
    """Duration of a window."""
    half_width: float
    """Timing ends when the 95 % half-width is at most this share of the mean."""
