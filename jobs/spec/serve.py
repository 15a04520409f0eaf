"""The serve section: the endpoint that the trained model gets."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from jobs.errors import shown
from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import (
    AcceleratorRequest,
    Accelerators,
    Bound,
    Duration,
    Limit,
    PositiveDuration,
)
from jobs.spec.train import Precision

EngineName = Literal[
    "openvino-int8",
    "openvino-bf16",
    "openvino-fp32",
    "onnx-fp32",
    "torch-bf16",
    "torch-fp16",
    "torch-fp32",
]
"""Library and what it computes in."""


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
    targets: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """The same for replicas on some accelerators, such as `{T4: 4}`."""
    upscale_delay: Duration = timedelta(seconds=10)
    """How long demand must stay high before replicas are added."""
    downscale_delay: Duration = timedelta(minutes=5)
    """How long demand must stay low before replicas are removed."""


class BatchingSpec(SpecModel):
    """How requests are answered together: whatever waits when the model is free."""

    max_batch_size: Annotated[int, Field(ge=1, le=4096)] = 64
    """Most texts in one forward pass."""
    max_wait: Duration = timedelta(0)
    """How long an idle model waits for company of a lone text; a busy one finds it meanwhile."""


class LimitsSpec(SpecModel):
    """What an endpoint takes on."""

    queue_tokens: Annotated[int, Field(ge=512)] = 262_144
    """Tokens that may wait in one replica; above it requests are answered 503 with Retry-After."""
    requests_per_second: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Requests that one client, told by its token or else its address, may send in a second; above
    it they are answered 429. 0 for any number. Kept by HAProxy on each node."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """Longest that a request may take; clients may ask for less."""


class SloSpec(SpecModel):
    """What the endpoint promises."""

    p95_latency: Duration | None = None
    """95 % of answers come within this time."""
    error_rate: Limit | None = None
    """Share of failed requests."""


_GATE_RULE = re.compile(r"(accuracy|agreement|perplexity|latency)\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)")
GATE_RULE = (
    "write slo, 'accuracy>=-0.01' (change), 'agreement>=0.95' (share), 'perplexity<=1.05' (times)"
    " or 'latency<=1.5' (times)"
)


@dataclass(frozen=True, slots=True)
class GateRule:
    """What a new version must keep; `slo` stands for the section of that name."""

    name: Literal["slo", "accuracy", "agreement", "perplexity", "latency"]
    bound: Bound | None = None
    """On the change of accuracy, the share of equal labels, or perplexity or p95 latency over the
    old one's."""

    def __str__(self) -> str:
        return f"{self.name}{self.bound or ''}"


def parse_gate_rule(value: Any) -> GateRule:
    """Read `slo` or `accuracy>=-0.01`."""
    if isinstance(value, GateRule):
        return value
    if value == "slo":
        return GateRule("slo")
    match = _GATE_RULE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or math.isinf(float(match[3])):
        raise ValueError(f"{shown(value)} is no rule of a gate; {GATE_RULE}")
    return GateRule(match[1], Bound(match[2], float(match[3])))  # type: ignore[arg-type]


Gate = Annotated[
    GateRule,
    BeforeValidator(parse_gate_rule),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["slo", "accuracy>=-0.01", "latency<=1.5"]}),
]


class RolloutSpec(SpecModel):
    """How a new version takes over; left out, it answers everything once it is healthy."""

    steps: Annotated[Items[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1)] = (100,)
    """Percent of traffic at each step."""
    hold: Duration = timedelta(minutes=2)
    """How long each step is watched."""
    gate: Items[Gate] = (
        GateRule("slo"),
        GateRule("accuracy", Bound(">=", -0.01)),
        GateRule("perplexity", Bound("<=", 1.05)),
        GateRule("latency", Bound("<=", 1.5)),
    )
    """What must hold before the first step and after each; if not, the old version stays. Accuracy
    and agreement are of classifiers, both asked for the old one's evaluation rows; perplexity is of
    language models, as each had it when it was trained."""


class AuthSpec(SpecModel):
    """Who may call the endpoint."""

    tokens_from: str | None = None
    """Environment variable with accepted bearer tokens, read when the endpoint is deployed."""
    tokens_file: Annotated[str, Field(pattern="^/")] | None = None
    """File with names and hashes of accepted tokens, made by `winnow token add`, at the same place
    on every node with replicas; a change is followed within a second or two."""

    @model_validator(mode="after")
    def _one_is_needed(self) -> Self:
        if self.tokens_from is None and self.tokens_file is None:
            raise ValueError("needs tokens_from, tokens_file or both: nobody could ask otherwise")
        return self


class ServeSpec(SpecModel):
    """An autoscaled HTTP endpoint on Ray Serve."""

    route: Annotated[str, Field(pattern=r"^/[a-z0-9][a-z0-9/_-]{0,62}$")]
    """Path prefix; predictions are at `<route>/predict`."""
    accelerators: Accelerators = AcceleratorRequest("cpu", 1)
    """Devices of one replica; may differ from the training hardware."""
    fallback: Items[Accelerators] = ()
    """Other GPUs, as many to a replica, for those that find none of `accelerators` free: the first
    in the list that are. Each replica chooses its own engine."""
    engine: EngineName | Literal["auto"] = "auto"
    """What runs the model; auto measures, and takes the fastest that answers like torch in fp32.
    OpenVINO and ONNX Runtime need `pip install 'raywinnow[cpu-engines]'`; auto leaves out what is
    not installed."""
    precision: Precision | Literal["auto"] = "auto"
    """What engines compute in; auto allows all that pass."""
    replicas: ReplicasSpec = ReplicasSpec()
    """How many copies."""
    grpc: Annotated[bool, Field(strict=True)] = False
    """Whether classifiers answer the Open Inference Protocol over gRPC too, at the port 1000 above
    that of HTTP; callers name the model as `application` in their metadata. Needs
    `pip install 'raywinnow[grpc]'`."""
    fronts: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"
    """Processes that take and tokenise requests for each copy of the model, each with a core that
    is reserved for it. Auto: none before a CPU; before a GPU, which is faster than one process can
    ask, up to 6 as the node has cores for each of its GPUs, and no core reserved."""
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    """When copies are added and removed."""
    batching: BatchingSpec = BatchingSpec()
    """How requests are answered together."""
    limits: LimitsSpec = LimitsSpec()
    """What one replica takes on."""
    slo: SloSpec | None = None
    """What the endpoint promises; a version that does not keep it is not deployed."""
    rollout: RolloutSpec | None = None
    """How a new version takes over."""
    auth: AuthSpec | None = None
    """Who may call."""
