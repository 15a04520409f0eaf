"""The whole job file."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from jobs.spec import task_registry
from jobs.spec.base import Items, SpecModel
from jobs.spec.data import TaskData
from jobs.spec.model import ModelSpec
from jobs.spec.notify import NotifySpec
from jobs.spec.publish import PublishSpec
from jobs.spec.quantities import Duration, PositiveDuration
from jobs.spec.resources import ResourcesSpec, WaitSpec
from jobs.spec.serve import ServeSpec
from jobs.spec.sweep import SweepSpec
from jobs.spec.task import Task
from jobs.spec.train import TrainSpec


class BudgetSpec(SpecModel):
    """What the run may spend; training that would exceed it stops early and is published."""

    max_cost: Annotated[float | None, Field(gt=0)] = None
    """USD that probes, trials and training may cost together."""
    max_duration: Duration | None = None
    """Wall-clock time that the sweep and training may take together, without the time for which
    the run waits for devices."""


class OwnedSpec(SpecModel):
    """What an hour of a device that you own costs: a share of its price, and its power."""

    purchase: Annotated[float, Field(ge=0)]
    """Price of one device in USD, with its share of the machine around it."""
    life: PositiveDuration = timedelta(days=4 * 365)
    """How long the device is used, such as 1460d."""
    busy: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of its life in which the device works; the price is spread over those hours alone."""
    power_w: Annotated[float, Field(ge=0)] = 0.0
    """Watts that the device draws at work, with its share of the machine and of cooling."""
    usd_per_kwh: Annotated[float, Field(ge=0)] = 0.0
    """Price of power in USD."""

    @property
    def usd_per_hour(self) -> float:
        """Returns the cost of an hour at work."""
        hours = self.life.total_seconds() / 3600 * self.busy
        return self.purchase / hours + self.power_w / 1000 * self.usd_per_kwh


class MlflowSpec(SpecModel):
    """An MLflow tracking server."""

    uri: str
    """Tracking URI, such as `http://host:5000` or `sqlite:///mlflow.db`. Its user and password are
    MLflow's own variables, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."""
    experiment: Annotated[str, Field(min_length=1)] | None = None
    """Experiment of the runs; by default the job's name."""


class WandbSpec(SpecModel):
    """A project of Weights & Biases."""

    project: Annotated[str, Field(min_length=1)] | None = None
    """Project of the runs; by default the job's name."""
    entity: Annotated[str, Field(min_length=1)] | None = None
    """User or team that owns the project; by default that of WANDB_API_KEY."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes files into the run's folder, which `wandb sync` sends later."""


class TrackingSpec(SpecModel):
    """Where metrics are sent, besides TensorBoard files in the run's folder."""

    mlflow: MlflowSpec | None = None
    """An MLflow tracking server."""
    wandb: WandbSpec | None = None
    """A project of Weights & Biases."""
    tags: dict[str, str] = Field(default={})
    """Tags of each run, besides the names of job, run and task."""
    artifacts: bool = True
    """Whether the report and the published model are uploaded too."""


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


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
    data: TaskData
    """Rows and columns."""
    train: TrainSpec = TrainSpec()
    """How to train."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Runs of a higher priority get free devices before others; no run is interrupted."""
    owner: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Who the devices are for, such as a team: owners with waiting runs get equal shares of device
    time. By default WINNOW_USER, else the user and host that started the run."""
    resources: ResourcesSpec | None = None
    """Hardware that may be used; left out, one device of each kind in the cluster is a
    candidate."""
    prices: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    """USD per device hour by accelerator name; overrides the catalogue."""
    owned: dict[str, OwnedSpec] = Field(default={})
    """Accelerators that you own, by name; their cost per hour is computed and overrides
    `prices`."""
    sweep: SweepSpec | None = None
    """What to search; left out, `train` runs as it is on the cheapest placement that fits."""
    budget: BudgetSpec | None = None
    """What the run may spend."""
    serve: ServeSpec | None = None
    """The endpoint; left out, the model is published and not served."""
    publish: PublishSpec | None = None
    """Where versions are uploaded to; they are published in the storage in any case."""
    storage: Annotated[str, Field(min_length=1)] = "./.winnow"
    """Where runs and models are kept: a folder, relative to the working directory and seen by all
    nodes, or `s3://bucket/prefix`."""
    tracking: TrackingSpec | None = None
    """Where metrics are sent, besides TensorBoard files in the run's folder."""
    notify: Items[NotifySpec] = ()
    """Who hears how a run goes. A notification that cannot be sent is a remark of the run."""
    secrets: Items[VariableName] = ()
    """Names of environment variables that workers need, such as HF_TOKEN; never values. They are
    taken from the environment of `winnow run`, or of the cluster's nodes for `winnow submit`, and
    handed to the workers in memory; a run does not begin while one of them is not set."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of all environment variables whose values are secret."""
        tokens = self.serve.auth.tokens_from if self.serve and self.serve.auth else None
        served = (tokens,) if tokens else ()
        return tuple(dict.fromkeys((*self.secrets, *self.notify_names, *served)))

    @property
    def notify_names(self) -> tuple[str, ...]:
        """Names of the environment variables with the URLs of notifications."""
        names = (place.variable for place in self.notify)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def hourly_prices(self) -> dict[str, float]:
        """USD per device hour by the names that the job gives."""
        owned = {name: device.usd_per_hour for name, device in self.owned.items()}
        return {**self.prices, **owned}

    @property
    def wait(self) -> WaitSpec:
        """What to do while devices are busy."""
        return self.resources.wait if self.resources else WaitSpec()

    @property
    def task(self) -> Task:
        """What the model learns to do, in the variant that the data section chooses."""
        return task_registry.chosen(self.model.task, self.data.variant)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what the model is judged by: the job's choice, or the task's default."""
        return self.train.eval.metrics or self.task.default_metrics
