"""From the measured speed of a candidate to the time and cost of the full run."""

import math
import statistics
from dataclasses import dataclass

from jobs.spec import JobSpec
from jobs.training.data import batches
from jobs.training.events import OutOfMemory, Probed
from orchestrator.decisions.plan import Candidate

Z_95 = 1.96
"""Half-width of a 95 % interval in standard errors."""
FLOOR_SHARE = 0.05
"""Narrowest relative half-width that is claimed: short probes miss slow drifts."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the range it is expected in."""

    low: float
    mean: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The interval times a positive number."""
        return Interval(self.low * factor, self.mean * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a probe found, or that the candidate ran out of memory."""

    candidate: str
    step_s: Interval | None
    """Mean time of an optimizer step; None after running out of memory."""
    eval_samples_per_s: float = 0.0
    final_eval_samples_per_s: float = 0.0
    """Of the last evaluation, which is in another precision."""
    peak_memory_gib: float = 0.0
    train_rows: int = 0
    eval_rows: int = 0
    setup_s: float = 0.0
    """Reading data and building the model in a worker."""
    start_s: float = 0.0
    """Starting the worker group."""
    failure: str = ""
    """The allocator's message after running out of memory."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected time and cost of the full training run on one candidate."""

    candidate: str
    steps: int
    time_s: Interval
    cost_usd: Interval | None
    """None where no price is known."""


def summarise(event: Probed | OutOfMemory, start_s: float) -> Measurement:
    """Mean step time with its 95 % interval; the mean, because stalls are billed too."""
    if isinstance(event, OutOfMemory):
        return Measurement(event.candidate, None, start_s=start_s, failure=event.message)
    mean = statistics.fmean(event.step_seconds)
    error = statistics.stdev(event.step_seconds) / math.sqrt(len(event.step_seconds))
    half = max(Z_95 * error, FLOOR_SHARE * mean)
    return Measurement(
        candidate=event.candidate,
        step_s=Interval(max(0.0, mean - half), mean, mean + half),
        eval_samples_per_s=event.eval_samples_per_s,
        final_eval_samples_per_s=event.final_eval_samples_per_s,
        peak_memory_gib=event.peak_memory_gib,
        train_rows=event.train_rows,
        eval_rows=event.eval_rows,
        setup_s=event.setup_s,
        start_s=start_s,
    )


def predict(
    spec: JobSpec, candidate: Candidate, measured: Measurement, setup_s: float
) -> Prediction | None:
    """T = start + setup + steps x step + evaluations; None after running out of memory.

    `setup_s` is that of the first candidate of a worker group, which alone reads the data.
    """
    if measured.step_s is None:
        return None
    train = spec.train
    steps = batches.total_steps(measured.train_rows, train.global_batch_size, train.epochs)
    earlier = (_evaluations(spec, measured, steps) - 1) / measured.eval_samples_per_s
    judged_s = measured.eval_rows * (earlier + 1 / measured.final_eval_samples_per_s)
    fixed = measured.start_s + setup_s + judged_s
    stepping = measured.step_s.scaled(steps)
    time_s = Interval(fixed + stepping.low, fixed + stepping.mean, fixed + stepping.high)
    price = candidate.placement.price_usd_per_hour
    cost = None if price is None else time_s.scaled(price / 3600)
    return Prediction(candidate.id, steps, time_s, cost)


def predict_all(
    spec: JobSpec, candidates: tuple[Candidate, ...], measurements: tuple[Measurement, ...]
) -> tuple[Prediction, ...]:
    """Predictions of every candidate that was measured."""
    by_id = {candidate.id: candidate for candidate in candidates}
    setups: dict[str, float] = {}
    for measured in measurements:
        name = measured.candidate.split("/")[0]
        setups[name] = max(setups.get(name, 0.0), measured.setup_s)
    found = (
        predict(spec, by_id[m.candidate], m, setups[m.candidate.split("/")[0]])
        for m in measurements
        if m.candidate in by_id
    )
    return tuple(prediction for prediction in found if prediction)


def _evaluations(spec: JobSpec, measured: Measurement, steps: int) -> int:
    every = spec.train.eval.every
    if every.unit == "second":
        stepping_s = (measured.step_s.mean if measured.step_s else 0.0) * steps
        return 1 + int(stepping_s / every.value)
    per_epoch = batches.steps_per_epoch(measured.train_rows, spec.train.global_batch_size)
    interval = every.value * (per_epoch if every.unit == "epoch" else 1)
    return max(1, math.ceil(steps / max(1.0, interval)))
