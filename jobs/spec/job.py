"""The whole job file."""

from typing import Annotated, Literal

from pydantic import Field

from jobs.spec.base import Items, SpecModel
from jobs.spec.data import DataSpec
from jobs.spec.model import ModelSpec
from jobs.spec.quantities import Duration
from jobs.spec.resources import ResourcesSpec
from jobs.spec.serve import ServeSpec
from jobs.spec.sweep import SweepSpec
from jobs.spec.train import DEFAULT_METRICS, Metric, TrainSpec


class BudgetSpec(SpecModel):
    """What the run may spend; training stops in time, is judged, saved and published as it is."""

    max_cost: Annotated[float | None, Field(gt=0)] = None
    """USD of probes, trials and training."""
    max_duration: Duration | None = None
    """Wall-clock time of the sweep and training."""


class MlflowSpec(SpecModel):
    """An MLflow tracking server."""

    uri: str
    """Tracking URI or folder."""


class TrackingSpec(SpecModel):
    """Where metrics are also sent."""

    mlflow: MlflowSpec | None = None
    """An MLflow tracking server."""


class JobSpec(SpecModel):
    """One job: what to fine-tune, on what, how, where, and how to serve it."""

    version: Literal[1]
    """Version of this format."""
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    """Names the runs, the model in the registry and the Ray Serve application."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    """Seed of weights, data order and search."""
    model: ModelSpec
    """Which weights to start from."""
    data: DataSpec
    """Rows and columns."""
    train: TrainSpec = TrainSpec()
    """How to train."""
    resources: ResourcesSpec | None = None
    """Where the job may run; left out, one device of each kind in the cluster is a candidate."""
    prices: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    """USD per device hour by accelerator name; overrides the catalogue."""
    sweep: SweepSpec | None = None
    """What to search; left out, the train section runs as it is on the best placement."""
    budget: BudgetSpec | None = None
    """What the run may spend."""
    serve: ServeSpec | None = None
    """The endpoint; left out, the model is published but not served."""
    storage: Annotated[str, Field(min_length=1)] = "./.winnow"
    """Folder for runs and models, relative to the working directory."""
    tracking: TrackingSpec | None = None
    """Where metrics are also sent."""
    secrets: Items[str] = ()
    """Names of environment variables that workers need; never values."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What the model is judged by: the job's choice, or the task's default."""
        return self.train.eval.metrics or DEFAULT_METRICS[self.model.task]
