"""The durations and limits of a candidate's probe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jobs.spec.train import Precision
from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from jobs.training.events import BUSY_SHARE, Probed, Unprobed

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


def beyond_slower(
    candidate: str, config: TrainingConfig, known: Mapping[str, tuple[TrainingConfig, Probed]]
) -> Unprobed | None:
    """Returns why a candidate needs no probe; None if it does. `known` are those before it, by id.

    Over micro batches, all else alike, the time of a step falls until the device is busy and rises
    when memory is short: if 16 rows are slower than 32, so are 8. A slower time that other programs
    may have caused says nothing.
    """
    for between, slower in known.values():
        better = known.get(slower.better)
        if better is None or not slower.is_given_up or not _is_undisturbed(slower):
            continue
        low, high = sorted((config.micro_batch_size, better[0].micro_batch_size))
        is_between = low < between.micro_batch_size < high
        if is_between and len({_but_size(each) for each in (config, between, better[0])}) == 1:
            return Unprobed(candidate, slower.candidate, slower.better)
    return None


def _is_undisturbed(probed: Probed) -> bool:
    others = probed.speed.others_cpu_share if probed.speed else 0.0
    return probed.is_steady and others <= BUSY_SHARE


def _but_size(config: TrainingConfig) -> bytes:
    return bytes(TRAINING_CONFIG.dump_json(replace(config, micro_batch_size=1)))
