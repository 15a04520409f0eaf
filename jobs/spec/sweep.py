"""The sweep section: what is searched, how long, and what counts as best."""

from typing import Annotated

from pydantic import Field

from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import Duration, Limit, PositiveDuration

Scalar = int | float | str
Choices = Annotated[Items[Scalar], Field(min_length=1, max_length=256)]
Range = Annotated[Items[float], Field(min_length=2, max_length=2)]


class LogUniform(SpecModel):
    """Drawn uniformly on a logarithmic scale."""

    loguniform: Range
    """Lowest and highest value."""


class Uniform(SpecModel):
    """Drawn uniformly."""

    uniform: Range
    """Lowest and highest value."""


class ProbeSpec(SpecModel):
    """How long a speed probe of one candidate may take."""

    warmup: Duration | None = None
    """Steps are not counted for this long, and until two windows in a row are equally fast; at most
    12 times as long (3 on a CPU). By default 5s, 2s on a CPU."""
    duration: PositiveDuration | None = None
    """Steps are timed for this long, and until the mean is known to 1.5 % (3 on a CPU); at most 12
    times as long (3 on a CPU). By default 10s, 8s on a CPU."""
    confirm: Annotated[int, Field(ge=0, le=8)] = 2
    """How many of the best candidates are timed again in fresh processes before one is chosen."""


class ObjectiveSpec(SpecModel):
    """What counts as best, and what every choice must keep."""

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
    """A search over how to train: speed by short probes, quality by short trials."""

    search_space: Annotated[dict[str, Choices | LogUniform | Uniform], Field(min_length=1)]
    """Dotted path of a field to the values it may take: a list, loguniform or uniform."""
    trials: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Quality trials over the fields that change learning."""
    trial_share: Annotated[float, Field(gt=0, le=1)] = 0.34
    """Share of the full run's epochs that a quality trial may take at most."""
    objective: ObjectiveSpec = ObjectiveSpec(minimize="cost")
    """What counts as best."""
    probe: ProbeSpec = ProbeSpec()
    """How long a speed probe may take."""
