"""Measurements and predictions of a candidate's speed, as values."""

import dataclasses
from dataclasses import dataclass, field

from jobs.training.events import BUSY_SHARE, Metered, OutOfMemory, Overheads, Probed, Unprobed
from jobs.training.step_times import mean_over, mean_width

THROTTLED_SHARE = 0.05
"""Share of readings with a reduced GPU clock above which a measurement counts as disturbed."""

OUT_OF_MEMORY, NOT_COMPILABLE = "out of memory", "compiling failed"
NOT_PROBED = "not probed"


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds of its expected range."""

    low: float
    mean: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """Returns the interval multiplied by a positive number."""
        return Interval(self.low * factor, self.mean * factor, self.high * factor)

    @property
    def half_width(self) -> float:
        """Half of the range."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a probe, also if the candidate ran out of memory or could not be compiled."""

    candidate: str
    step_s: Interval | None
    """Mean time of an optimizer step over the full run; None after a failure."""
    steps: int = 0
    """Optimizer steps of the full run."""
    overheads: Overheads | None = None
    """None if it failed or stopped early, or if only steps were measured."""
    is_given_up: bool = False
    """Whether the probe stopped early, because the candidate could not be fastest or cheapest."""
    speed: Metered | None = None
    train_rows: int = 0
    eval_rows: int = 0
    probe_s: float = 0.0
    """Duration of the probe; 0 for a measurement that was taken from an earlier run."""
    is_steady: bool = True
    """Whether warm-up ended because step times agreed, and not by its time limit."""
    failure: str = ""
    """The allocator's message after running out of memory, or why compiling failed."""
    fault: str = OUT_OF_MEMORY
    """What `failure` is, or why there is no time without one, in a few words."""
    environment: dict[str, str] = field(default_factory=dict)
    """Versions and hardware of the measurement."""
    better: str = ""
    """Id of the known candidate, faster and no dearer, for which the probe stopped early; empty if
    it did not, or in a run of an older release."""
    slower: str = ""
    """Id of a candidate between this one and the better one, for which this one was not probed;
    empty if it was."""
    width: float = 0.0
    """Mean width of the full run's steps: padded tokens of each row; 0 if not known."""
    capture_s: float | None = None
    """Time of capturing or compiling, where steps of trials are the measurement."""

    @property
    def is_reused(self) -> bool:
        """Whether it was taken from an earlier run."""
        return self.probe_s == 0.0 and not self.slower

    @property
    def why_given_up(self) -> str:
        """Says why the probe stopped early, or was not needed; empty if it ran to its end."""
        if self.slower:
            return f"not probed: {self.slower} is slower than {self.better}"
        if not self.is_given_up:
            return ""
        return f"given up: {self.better} is faster and costs no more" if self.better else "given up"

    @property
    def captured_s(self) -> float | None:
        """Time of capturing or compiling; None if not known."""
        return self.speed.capture_s if self.speed else self.capture_s

    @property
    def peak_memory_gib(self) -> float | None:
        """Largest peak memory of the workers; None after a failure."""
        return self.speed.peak_memory_gib if self.speed else None

    @property
    def disturbances(self) -> tuple[str, ...]:
        """Reasons why the times may differ from those on a quiet machine."""
        unsteady = () if self.is_steady else ("step times did not become steady",)
        return (*disturbances(self.speed), *unsteady)


@dataclass(frozen=True, slots=True)
class Launch:
    """What starting or ending a worker group on a placement took, or both."""

    placement: str
    start_s: float | None = None
    """None if this is only the end, because the start is recorded when the group is ready."""
    end_s: float | None = None
    """None if this is only the start."""
    is_reused: bool = False
    """Whether it was measured in an earlier run, and so costs nothing in this one."""
    is_apart: bool = False
    """Whether starts and ends are recorded each by itself, and no trial's duration includes them,
    as in runs of this release."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a run, in seconds."""

    start: float
    """Starting the worker group."""
    setup: float
    """Reading data, building the model, capturing, and the additional time of the first steps."""
    steps: float
    evaluations: float
    checkpoints: float
    """Time for which training waits for checkpoints, and scores the rows saved with the last."""
    end: float
    """Measuring communication, verifying, ending the group."""

    @property
    def total(self) -> float:
        """Sum of all phases."""
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
    """Peak memory of a worker in the probe."""


def disturbances(speed: Metered | None) -> tuple[str, ...]:
    """Returns sentences on what slowed the machine down during a measurement."""
    if speed is None:
        return ()
    found = []
    if speed.others_cpu_share > BUSY_SHARE:
        found.append(f"other processes used {speed.others_cpu_share:.0%} of the CPUs")
    if (speed.throttled_share or 0.0) > THROTTLED_SHARE:
        found.append(
            f"heat or hardware limits reduced the GPU's clock {speed.throttled_share:.0%} of the"
            " time; see winnow doctor"
        )
    return tuple(found)


def summarise(event: Probed | Unprobed | OutOfMemory) -> Measurement:
    """Returns the mean step time of the full run with its 95 % interval, if it was probed.

    The mean and not the median, because slow steps are paid too.
    """
    if isinstance(event, Unprobed):
        found = Measurement(event.candidate, None, fault=NOT_PROBED)
        return dataclasses.replace(found, slower=event.slower, better=event.better)
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
        better=event.better,
        width=mean_width(event.steps_of_width),
    )
