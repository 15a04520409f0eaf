"""The steps of trials as another timing of the candidate that they run on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.training.events import Event, Started, Stepped
from jobs.training.probing.timing import ProbeTiming
from jobs.training.step_times import in_windows, mean_at
from orchestrator.decisions.measurement import Interval, Measurement

NEUTRAL = ("train.optimizer.lr", "train.optimizer.weight_decay", "train.lr_schedule", "seed")
"""Prefixes of the fields whose values do not change how long a step takes."""


@dataclass(frozen=True, slots=True)
class TrialTiming:
    """How long the optimizer steps of one trial took."""

    step_s: Interval
    """Mean time of an optimizer step over the full run, as in a measurement."""
    steps: int
    """Number of timed steps."""
    seconds: float
    """Sum of their durations."""
    capture_s: float
    """Time of capturing or compiling, when the session of the trial was built."""


class TrialTimer:
    """Collects the steps of one trial after its first ones."""

    def __init__(self, timing: ProbeTiming, rows: int, width: float) -> None:
        """`rows`: of an optimizer step. `width`: mean padded tokens of a row in the full run."""
        self._timing, self._rows, self._width = timing, rows, width
        self._widths, self._seconds = list[int](), list[float]()
        self._capture_s, self._seen = 0.0, 0
        self._last: Stepped | None = None
        """The last timed step; None where something else came after it, such as an evaluation."""
        self._wall_s, self._device_s = 0.0, 0.0
        """Time of steps by the clock that counts what is between them too, and by the device's."""

    def take(self, event: Event) -> None:
        """Takes an event of the trial."""
        if isinstance(event, Started):
            self._capture_s = event.capture_s
        if not isinstance(event, Stepped):
            self._last = None
            return
        self._seen += 1
        if self._seen <= self._timing.warmup_steps:
            return
        self._widths.append(event.padded_tokens // self._rows)
        self._seconds.append(event.seconds)
        if self._last:
            self._wall_s += event.elapsed_s - self._last.elapsed_s
            self._device_s += event.seconds
        self._last = event

    def timed(self) -> TrialTiming | None:
        """Returns the timing of the steps so far; None for fewer than a probe needs."""
        count = len(self._seconds)
        if not self._width or count < self._timing.steps or not self._device_s:
            return None
        scale = self._wall_s / self._device_s  # a probe too counts what is between steps
        seconds = [scale * each for each in self._seconds]
        mean = mean_at(in_windows(self._widths, seconds, self._timing.window_s), self._width)
        low = max(0.0, mean.value - mean.half_width)
        step_s = Interval(low, mean.value, mean.value + mean.half_width)
        return TrialTiming(step_s, count, sum(seconds), self._capture_s)


def is_neutral(names: Iterable[str]) -> bool:
    """Returns whether no searched field changes the duration of a step."""
    return all(name.startswith(NEUTRAL) for name in names)


def measured_by(
    candidate: str, timings: Sequence[TrialTiming], steps: int, timing: ProbeTiming
) -> Measurement | None:
    """Returns the trials of a candidate as one measurement of its steps.

    Its interval has the means of all trials. `steps`: of the full run. Returns None if the steps
    of all trials together took less time than a probe times.
    """
    if not timings or sum(each.seconds for each in timings) < timing.duration_s:
        return None
    weights = [each.steps / sum(other.steps for other in timings) for each in timings]
    pairs = list(zip(weights, timings, strict=True))
    mean = sum(weight * each.step_s.mean for weight, each in pairs)
    chance = math.hypot(*(weight * each.step_s.half_width for weight, each in pairs))
    half_s = max(chance, *(abs(each.step_s.mean - mean) for each in timings))
    step_s = Interval(max(0.0, mean - half_s), mean, mean + half_s)
    capture_s = min(each.capture_s for each in timings)
    return Measurement(candidate, step_s, steps, fault="", capture_s=capture_s)
