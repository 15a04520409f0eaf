"""The serve section: the endpoint that the trained model gets."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import AcceleratorRequest, Accelerators, Duration, Limit
from jobs.spec.train import Precision


class ReplicasSpec(SpecModel):
    """How many copies of the model serve requests."""

    min: Annotated[int, Field(ge=0, le=1000)] = 1
    """Never fewer; 0 scales to zero when nobody asks."""
    max: Annotated[int, Field(ge=1, le=1000)] = 1
    """Never more."""


class AutoscalingSpec(SpecModel):
    """When copies are added and removed."""

    target_ongoing_requests: Annotated[float, Field(gt=0)] = 8
    """Requests in flight per replica that the autoscaler aims for."""
    upscale_delay: Duration = timedelta(seconds=10)
    """How long demand must stay high before replicas are added."""
    downscale_delay: Duration = timedelta(minutes=5)
    """How long demand must stay low before replicas are removed."""


class BatchingSpec(SpecModel):
    """How requests are answered together."""

    max_batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    """Most texts in one forward pass."""
    max_wait: Duration = timedelta(milliseconds=5)
    """How long the first request of a batch may wait for company."""


class SloSpec(SpecModel):
    """What the endpoint promises."""

    p95_latency: Duration | None = None
    """95 % of answers come within this time."""
    error_rate: Limit | None = None
    """Share of failed requests."""


class RolloutSpec(SpecModel):
    """How a new version takes over."""

    steps: Annotated[Items[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1)] = (100,)
    """Percent of traffic at each step."""
    hold: Duration = timedelta(minutes=2)
    """How long each step is watched."""
    gate: Items[str] = ("slo",)
    """What must hold for the next step."""


class AuthSpec(SpecModel):
    """Who may call the endpoint."""

    tokens_from: str
    """Environment variable with the accepted bearer tokens."""


class ServeSpec(SpecModel):
    """An autoscaled HTTP endpoint on Ray Serve."""

    route: Annotated[str, Field(pattern=r"^/[a-z0-9][a-z0-9/_-]{0,62}$")]
    """Path prefix; predictions are at `<route>/predict`."""
    accelerators: Accelerators = AcceleratorRequest("cpu", 1)
    """Devices of one replica; may differ from the training hardware."""
    precision: Precision = "fp32"
    """Precision of the forward pass."""
    replicas: ReplicasSpec = ReplicasSpec()
    """How many copies."""
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    """When copies are added and removed."""
    batching: BatchingSpec = BatchingSpec()
    """How requests are answered together."""
    slo: SloSpec | None = None
    """What the endpoint promises."""
    rollout: RolloutSpec | None = None
    """How a new version takes over."""
    auth: AuthSpec | None = None
    """Who may call."""
