"""The durations and limits of a candidate's probe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jobs.spec.train import Precision

OTHER_PRECISION = 2.0
"""A candidate stops early for one of another precision only if its steps take this many times as
long, because evaluations and first uses differ between precisions too."""
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
    silence_s: float = math.inf
    """Longest time without a report before the workers count as hung."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The mean step time above which a known candidate is faster and costs no more."""

    step_s: float
    candidate: str
    """Id of the known candidate."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """What a probe compares its candidate with, to stop early once that is better."""

    precisions: frozenset[Precision]
    """Precisions of the candidates of the same worker group to compare with."""
    outside: Limit | None = None
    """The limit by candidates that were measured before the group started; None without any."""

    def limit(self, precision: Precision, group: Mapping[Precision, Limit]) -> Limit | None:
        """Returns the lowest limit for a candidate, given the best of its group by precision."""
        known = [] if self.outside is None else [self.outside]
        for other in self.precisions & group.keys():
            factor = 1.0 if other == precision else OTHER_PRECISION
            known.append(replace(group[other], step_s=group[other].step_s * factor))
        return min(known, key=lambda limit: limit.step_s, default=None)
