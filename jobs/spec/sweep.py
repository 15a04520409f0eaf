"""The sweep section: what is searched, how long, and what counts as best."""

from typing import Annotated

from pydantic import Field

from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import Duration, Limit, PositiveDuration

Scalar = int | float | str
Choices = Annotated[Items[Scalar], Field(min_length=1, max_length=256)]
Range = Annotated[Items[float], Field(min_length=2, max_length=2)]


class LogUniform(SpecModel):
    """A range from which values are drawn uniformly on a logarithmic scale."""

    loguniform: Range
    """Lowest and highest value."""


class Uniform(SpecModel):
    """A range from which values are drawn uniformly."""

    uniform: Range
    """Lowest and highest value."""


class ProbeSpec(SpecModel):
    """How long the probe of one candidate takes."""

    warmup: Duration | None = None
    """Warm-up: steps are excluded from timing until this much time has passed and two consecutive
    windows are equally fast; it ends after 12 times this (3 times on a CPU) in any case. By default
    5s, 2s on a CPU."""
    duration: PositiveDuration | None = None
    """Timing: steps are timed until this much time has passed and the mean is known to 1.5 % (3 %
    on a CPU); it ends after 12 times this (3 times on a CPU) in any case. By default 10s, 8s on a
    CPU."""
    confirm: Annotated[int, Field(ge=0, le=8)] = 2
    """Number of best candidates that are timed again right before one is chosen. A candidate's
    trials are such a timing if they differ only in the learning rate, its schedule, weight decay or
    the seed, run one at a time, and together last at least `duration`."""


class ObjectiveSpec(SpecModel):
    """What the sweep optimises, and the limits that the winner must keep."""

    minimize: str | None = None
    """`cost` or `time` of the full training run, or a metric of `train.eval.metrics` that is better
    when lower."""
    maximize: str | None = None
    """A metric of `train.eval.metrics` that is better when higher."""
    subject_to: dict[str, Limit] = Field(default={})
    """Limits on metrics, `cost` in USD and `time`, such as `accuracy: ">=0.9"`."""

    @property
    def best(self) -> str:
        """What decides: `cost`, `time` or a metric."""
        return self.maximize or self.minimize or "cost"


class SweepSpec(SpecModel):
    """A search for how to train: probes measure speed, trials measure quality."""

    search_space: Annotated[dict[str, Choices | LogUniform | Uniform], Field(min_length=1)]
    """Dotted paths of fields, each with a list of values or a range to draw from. Probes decide
    `train.micro_batch_size` and `train.precision`. Trials decide `train.optimizer.lr`,
    `train.optimizer.weight_decay`, `train.optimizer.max_grad_norm`, `train.optimizer.momentum`,
    `train.optimizer.layerwise_lr_decay`, `train.optimizer.head_lr`, `train.lr_schedule.type`,
    `train.lr_schedule.warmup_ratio`, `train.lr_schedule.power`, `train.lr_schedule.floor`,
    `model.dropout` and `seed`."""
    trials: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Number of trials: short trainings with values of the fields that change quality."""
    trial_share: Annotated[float, Field(gt=0, le=1)] = 0.34
    """Longest trial, as a share of the full run's epochs."""
    objective: ObjectiveSpec = ObjectiveSpec(minimize="cost")
    """What the sweep optimises; by default the lowest cost of the full run."""
    probe: ProbeSpec = ProbeSpec()
    """How long the probe of one candidate takes."""
