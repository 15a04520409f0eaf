"""From the measured speed of a candidate to the time and cost of the full run."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.spec import JobSpec
from jobs.spec.quantities import Cadence
from jobs.training.data import batches
from jobs.training.events import Metered, OutOfMemory, Overheads, Probed
from jobs.training.step_times import mean_over
from orchestrator.decisions.plan import Candidate

STEP_SHARE = 0.04
"""Half-width that is claimed for steps besides what the probe saw: a fresh process on the same
machine is as much faster or slower, and a short probe misses slow drifts."""
FIXED_SHARE = 0.25
"""Half-width that is claimed for what is timed only once, such as starting."""
APART = 0.03
"""Two probes of a candidate that differ by more are settled by a third."""
THROTTLED_SHARE = 0.05
"""Share of readings with a clock held back from which on a measurement is called disturbed."""
BUSY_SHARE = 0.15
"""Share of a node's processors in other hands from which on a measurement is called disturbed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the range it is expected in."""

    low: float
    mean: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The interval times a positive number."""
        return Interval(self.low * factor, self.mean * factor, self.high * factor)

    @property
    def half_width(self) -> float:
        """Half of the range."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a probe found, or that the candidate ran out of memory."""

    candidate: str
    step_s: Interval | None
    """Mean time of an optimizer step over the whole run; None after running out of memory."""
    steps: int = 0
    """Of the whole run."""
    overheads: Overheads | None = None
    """None after running out of memory, when given up early, and when only steps were timed."""
    is_given_up: bool = False
    """Whether something better in every respect was known, so that probing ended early."""
    speed: Metered | None = None
    train_rows: int = 0
    eval_rows: int = 0
    probe_s: float = 0.0
    is_steady: bool = True
    """Whether warm-up ended because steps were equally fast, and not by its limit."""
    failure: str = ""
    """The allocator's message after running out of memory."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions and hardware that it holds for."""

    @property
    def peak_memory_gib(self) -> float | None:
        """Largest over the workers; None after running out of it."""
        return self.speed.peak_memory_gib if self.speed else None

    @property
    def disturbances(self) -> tuple[str, ...]:
        """Why the times may not be those of a quiet machine."""
        unsteady = () if self.is_steady else ("steps did not become steady",)
        return (*disturbances(self.speed), *unsteady)


@dataclass(frozen=True, slots=True)
class Launch:
    """What starting and ending a worker group on a placement took."""

    placement: str
    start_s: float
    end_s: float | None = None
    """None for a trial, whose end is not timed."""
    nested: bool = True
    """Whether a trial of Ray Tune started it, which takes longer than a fit does."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of a run goes, in seconds."""

    start: float
    """Starting the worker group."""
    setup: float
    """Reading data, building the model, capturing, and what first steps take longer."""
    steps: float
    evaluations: float
    checkpoints: float
    """What they hold up."""
    end: float
    """Measuring communication, verifying, ending the group."""

    @property
    def total(self) -> float:
        """All of them."""
        return float(sum(dataclasses.astuple(self)))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected time and cost of the full training run on one candidate."""

    candidate: str
    steps: int
    time_s: Interval
    cost_usd: Interval | None
    """None where no price is known."""
    phases: Phases | None = None
    peak_memory_gib: float | None = None
    """As the probe found it."""


def disturbances(speed: Metered | None) -> tuple[str, ...]:
    """What kept the machine from its usual speed, in words."""
    if speed is None:
        return ()
    found = []
    if speed.others_cpu_share > BUSY_SHARE:
        found.append(f"other processes kept {speed.others_cpu_share:.0%} of the processors busy")
    if (speed.throttled_share or 0.0) > THROTTLED_SHARE:
        found.append(
            f"heat or hardware held the GPU's clock back {speed.throttled_share:.0%} of the time;"
            " see winnow doctor"
        )
    return tuple(found)


def summarise(event: Probed | OutOfMemory) -> Measurement:
    """The run's mean step with its 95 % interval; the mean, because stalls are billed too."""
    if isinstance(event, OutOfMemory):
        return Measurement(event.candidate, None, failure=event.message)
    mean = mean_over(event.times, event.steps_of_width)
    low = max(0.0, mean.value - mean.half_width)
    return Measurement(
        candidate=event.candidate,
        step_s=Interval(low, mean.value, mean.value + mean.half_width),
        steps=sum(event.steps_of_width.values()),
        overheads=event.overheads,
        is_given_up=event.is_given_up,
        speed=event.speed,
        train_rows=event.train_rows,
        eval_rows=event.eval_rows,
        probe_s=event.probe_s,
        is_steady=event.is_steady,
        environment=event.environment,
    )


def predict_all(
    spec: JobSpec,
    candidates: Sequence[Candidate],
    measurements: Sequence[Measurement],
    launches: Sequence[Launch],
) -> tuple[Prediction, ...]:
    """Predictions of every candidate that was measured to the end.

    What only the first candidate of a worker group pays, the others' full runs will pay too.
    """
    by_id = {candidate.id: candidate for candidate in candidates}
    found = [m for m in measurements if m.candidate in by_id]
    predictions = []
    for measured in found:
        candidate = by_id[measured.candidate]
        name = candidate.placement.name
        beside = [m.overheads for m in found if m.candidate.startswith(f"{name}/") and m.overheads]
        started = [launch for launch in launches if launch.placement == name]
        started = [launch for launch in started if not launch.nested] or started
        predictions.append(_predict(spec, candidate, measured, beside, started))
    return tuple(prediction for prediction in predictions if prediction)


def _predict(
    spec: JobSpec,
    candidate: Candidate,
    measured: Measurement,
    beside: Sequence[Overheads],
    launches: Sequence[Launch],
) -> Prediction | None:
    """T = start + setup + capture + steps + evaluations + checkpoints + end."""
    own = measured.overheads
    if measured.step_s is None or own is None:
        return None
    stepping_s = measured.step_s.mean * measured.steps
    earlier = _evaluations(spec, measured, measured.steps) - 1
    phases = Phases(
        start=_median(launch.start_s for launch in launches),
        setup=max(o.setup_s for o in beside) + own.capture_s + max(o.first_use_s for o in beside),
        steps=stepping_s,
        evaluations=earlier * own.eval_s + own.final_eval_s,
        checkpoints=_checkpoints_s(spec, measured, own, stepping_s),
        end=own.metering_s + _median(o.end_s for o in launches if o.end_s is not None),
    )
    half_s = math.hypot(
        measured.step_s.half_width * measured.steps,
        STEP_SHARE * stepping_s,
        FIXED_SHARE * (phases.total - stepping_s),
    )
    time_s = Interval(max(0.0, phases.total - half_s), phases.total, phases.total + half_s)
    price = candidate.placement.price_usd_per_hour
    return Prediction(
        candidate=candidate.id,
        steps=measured.steps,
        time_s=time_s,
        cost_usd=None if price is None else time_s.scaled(price / 3600),
        phases=phases,
        peak_memory_gib=measured.peak_memory_gib,
    )


def settle(measured: Sequence[Measurement]) -> Measurement:
    """One measurement from several of a candidate: the median step, in a range that holds all."""
    steps = [m.step_s for m in measured if m.step_s]
    if len(steps) < 2:
        return measured[0]
    median = statistics.median(step.mean for step in steps)
    half_s = max(
        statistics.median(step.half_width for step in steps),
        *(abs(step.mean - median) for step in steps),
    )
    step_s = Interval(max(0.0, median - half_s), median, median + half_s)
    return dataclasses.replace(measured[0], step_s=step_s)


def are_apart(measured: Sequence[Measurement]) -> bool:
    """Whether probes of a candidate differ by more than APART and more than chance explains."""
    steps = [m.step_s for m in measured if m.step_s]
    if len(steps) < 2:
        return False
    low, high = min(steps, key=lambda s: s.mean), max(steps, key=lambda s: s.mean)
    chance = math.hypot(low.half_width, high.half_width)
    return high.mean - low.mean > max(APART * low.mean, chance)


def give_up_s(
    candidate: Candidate, steps: int, known: Mapping[str, Candidate], found: Sequence[Prediction]
) -> float | None:
    """Mean step time from which on a candidate is worse than something known in time and in cost.

    Only candidates of the same precision are compared, because another one may learn better. None
    when nothing is known to be better at any speed.
    """
    price = candidate.placement.price_usd_per_hour
    limits = []
    for prediction in found:
        other = known[prediction.candidate]
        if other.precision != candidate.precision:
            continue
        limit_s = prediction.time_s.high
        if price is not None and prediction.cost_usd is not None:
            same_cost_s = prediction.cost_usd.high / price * 3600 if price else math.inf
            limit_s = max(limit_s, same_cost_s)
        elif price is not None or prediction.cost_usd is not None:
            continue
        limits.append(limit_s / steps)
    return min(limits, default=None)


def _median(values: Iterable[float]) -> float:
    """0 of nothing; the first group of a cluster is slower to start than those after it."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def _checkpoints_s(
    spec: JobSpec, measured: Measurement, own: Overheads, stepping_s: float
) -> float:
    """What saving holds up; each save first waits until the one before it is written."""
    count = _times_due(spec.train.checkpoint.every, spec, measured, stepping_s)
    write_s = own.final_save_s - own.save_s
    waiting_s = max(0.0, write_s - stepping_s / count)
    return (count - 1) * (own.save_s + waiting_s) + own.final_save_s


def _evaluations(spec: JobSpec, measured: Measurement, steps: int) -> int:
    stepping_s = (measured.step_s.mean if measured.step_s else 0.0) * steps
    return _times_due(spec.train.eval.every, spec, measured, stepping_s)


def _times_due(every: Cadence, spec: JobSpec, measured: Measurement, stepping_s: float) -> int:
    """How often something happens over a run, its end included."""
    if every.unit == "second":
        return 1 + int(stepping_s / every.value)
    per_epoch = batches.steps_per_epoch(measured.train_rows, spec.train.global_batch_size)
    interval = every.value * (per_epoch if every.unit == "epoch" else 1)
    return max(1, math.ceil(measured.steps / max(1.0, interval)))
