"""The serve section: the endpoint that the trained model gets."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from jobs.errors import shown
from jobs.spec import task_registry
from jobs.spec.base import Items, SpecModel
from jobs.spec.harness import MARK
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
"""Library and what it computes in, of engines that score rows."""
TextEngineName = Literal["torch", "vllm", "openvino"]
"""Library of an engine that writes the answers of a language model."""


class ReplicasSpec(SpecModel):
    """Number of replicas, the processes that each hold the model."""

    min: Annotated[int, Field(ge=0, le=1000)] = 1
    """Fewest replicas; 0 scales to zero while no requests arrive."""
    max: Annotated[int, Field(ge=1, le=1000)] = 1
    """Most replicas."""


class AutoscalingSpec(SpecModel):
    """When replicas are added and removed."""

    target_ongoing_requests: Annotated[float, Field(gt=0)] = 8
    """Requests in flight per replica that the autoscaler aims for."""
    targets: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """The same for replicas on certain accelerators, such as `{T4: 4}`."""
    upscale_delay: Duration = timedelta(seconds=10)
    """How long demand must stay high before replicas are added."""
    downscale_delay: Duration = timedelta(minutes=5)
    """How long demand must stay low before replicas are removed."""


class BatchingSpec(SpecModel):
    """How requests share a batch, which forms of all that wait when the model becomes free."""

    max_batch_size: Annotated[int, Field(ge=1, le=4096)] = 64
    """Largest number of texts in one forward pass, or of answers that are written together."""
    max_wait: Duration = timedelta(0)
    """How long an idle model waits for more texts before it runs a lone one; a busy model does not
    wait, because texts queue meanwhile."""


class LimitsSpec(SpecModel):
    """Limits beyond which requests are refused."""

    queue_tokens: Annotated[int, Field(ge=512)] = 262_144
    """Most tokens that wait in one replica; beyond it requests get 503 with Retry-After."""
    requests_per_second: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Most requests per second from one client, identified by its token or else its address; beyond
    it requests get 429. 0 sets no limit. HAProxy counts on each node by itself."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """Longest time until the answer; later the request gets 504. Clients may ask for less."""


class SloSpec(SpecModel):
    """Service level that a version must keep to be deployed and to stay."""

    p95_latency: Duration | None = None
    """Time within which 95 % of requests are answered."""
    p95_ttft: Duration | None = None
    """Time within which 95 % of a language model's answers begin (time to first token)."""
    p95_tpot: Duration | None = None
    """Time that 95 % of a language model's answers keep per token (time per output token)."""
    error_rate: Limit | None = None
    """Bound on the share of failed requests."""


_GATE_RULE = re.compile(r"(\w[\w.:/-]*)\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)", re.ASCII)
RULES_OF_ALL = ("slo", "latency")
"""Rules of a gate that suit every task."""
GATE_RULE = (
    "write slo, 'accuracy>=-0.01' (change), 'agreement>=0.95' (share), 'perplexity<=1.05' (times)"
    " or 'latency<=1.5' (times)"
)


@dataclass(frozen=True, slots=True)
class GateRule:
    """One rule of a rollout's gate; `slo` stands for the section of that name."""

    name: str
    bound: Bound | None = None
    """On the change of a metric, the share of equal labels or texts, or rmse, perplexity or p95
    latency over the old one's."""

    def __str__(self) -> str:
        return f"{self.name}{self.bound or ''}"


def parse_gate_rule(value: Any) -> GateRule:
    """Read `slo` or `accuracy>=-0.01`."""
    if isinstance(value, GateRule):
        return value
    if value == "slo":
        return GateRule("slo")
    match = _GATE_RULE.fullmatch(value.strip()) if isinstance(value, str) else None
    names = [name for task in task_registry.kinds() for name in task.gate_rules]
    known = (*RULES_OF_ALL[1:], *names)
    is_known = match is not None and (match[1] in known or MARK in match[1])
    if match is None or not is_known or math.isinf(float(match[3])):
        raise ValueError(f"{shown(value)} is no rule of a gate; {GATE_RULE}")
    return GateRule(match[1], Bound(match[2], float(match[3])))  # type: ignore[arg-type]


Gate = Annotated[
    GateRule,
    BeforeValidator(parse_gate_rule),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["slo", "accuracy>=-0.01", "latency<=1.5"]}),
]


class RolloutSpec(SpecModel):
    """How a new version replaces the present one, step by step."""

    steps: Annotated[Items[Annotated[int, Field(ge=1, le=100)]], Field(min_length=1)] = (100,)
    """Percent of traffic at each step."""
    hold: Duration = timedelta(minutes=2)
    """How long each step is observed before the next."""
    gate: Items[Gate] = (
        GateRule("slo"),
        GateRule("accuracy", Bound(">=", -0.01)),
        GateRule("f1", Bound(">=", -0.01)),
        GateRule("f1_micro", Bound(">=", -0.01)),
        GateRule("rmse", Bound("<=", 1.05)),
        GateRule("mrr", Bound(">=", -0.01)),
        GateRule("spearman", Bound(">=", -0.01)),
        GateRule("perplexity", Bound("<=", 1.05)),
        GateRule("latency", Bound("<=", 1.5)),
    )
    """Rules that must hold before the first step and after each; otherwise the old version stays.
    accuracy, f1 (entities), f1_micro (several labels) and agreement compare both versions on the
    old version's evaluation rows, and rmse as a multiple of the old one's; mrr, spearman and
    agreement (mean cosine of old and new vectors) compare embeddings there; agreement of seq2seq is
    the share of equal texts. rougeL, bleu, chrf and exact_match (change) and perplexity (multiple)
    are compared by the values from training, and so are metrics of `train.eval.harness` (change),
    such as 'hellaswag/acc>=-0.01'. Rules of the default that are for other tasks are passed over;
    in a gate that a job writes, they are refused."""


class AuthSpec(SpecModel):
    """Bearer tokens that the endpoint accepts."""

    tokens_from: str | None = None
    """Environment variable with the accepted tokens, read when the endpoint is deployed."""
    tokens_file: Annotated[str, Field(pattern="^/")] | None = None
    """File with names and hashes of accepted tokens, made by `winnow token add`, at the same path
    on every node with replicas; replicas apply a change within two seconds."""

    @model_validator(mode="after")
    def _one_is_needed(self) -> Self:
        if self.tokens_from is None and self.tokens_file is None:
            raise ValueError("needs tokens_from, tokens_file or both: nobody could ask otherwise")
        return self


class AdaptersSpec(SpecModel):
    """Adapters that one replica of their base answers with."""

    slots: Annotated[int, Field(ge=1, le=256)] = 8
    """Adapters in the device's memory at once; others wait until no answer needs one of these."""
    rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Greatest rank of an adapter, at least that of the version which is deployed; left out, its
    own. Each token is multiplied with slots · rank columns in every adapted layer."""
    models: Items[Annotated[str, Field(pattern=r"^[a-z0-9*?][a-z0-9*?-]*$")]] = ()
    """Further published models, such as `support-*`, whose versions may be asked for; those of the
    job's own name always may."""


class ServeSpec(SpecModel):
    """An autoscaled HTTP endpoint on Ray Serve."""

    route: Annotated[str, Field(pattern=r"^/[a-z0-9][a-z0-9/_-]{0,62}$")]
    """Path prefix. Below it are `/predict` (classifiers, entities, masks), `/embeddings`,
    `/generate` (seq2seq) and `/v1/chat/completions` (causal-lm, preference)."""
    accelerators: Accelerators = AcceleratorRequest("cpu", 1)
    """Devices of one replica, which may differ from the training hardware."""
    fallback: Items[Accelerators] = ()
    """Other GPUs for replicas that find no free `accelerators`: the first in the list that are
    free, with the same number for a replica. Each replica chooses its own engine."""
    engine: Literal[EngineName, TextEngineName, "auto"] = "auto"
    """The library and precision that run the model; auto measures them and takes the fastest whose
    scores are those of training. For causal-lm and preference it is the library alone: torch, vllm
    on a GPU, or openvino on a CPU, and auto takes the fastest that writes the model's answers.
    OpenVINO and ONNX Runtime need `pip install 'raywinnow[cpu-engines]'`, and vLLM `pip install
    'raywinnow[vllm]'`; auto leaves out what is not installed."""
    precision: Precision | Literal["auto"] = "auto"
    """Precision that engines may compute in; auto allows all whose scores pass."""
    replicas: ReplicasSpec = ReplicasSpec()
    """Number of replicas."""
    grpc: Annotated[bool, Field(strict=True)] = False
    """Whether classifiers also answer the Open Inference Protocol over gRPC, at the port 1000 above
    that of HTTP; clients name the model as `application` in their metadata. Needs `pip install
    'raywinnow[grpc]'`."""
    fronts: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"
    """Number of processes that accept and tokenise requests for each replica, with a reserved core
    each. auto is 0 for a replica on a CPU; for one on a GPU, which computes faster than one process
    tokenises, it is up to 6 by the node's cores for each GPU, without reserving them."""
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    """When replicas are added and removed."""
    batching: BatchingSpec = BatchingSpec()
    """How requests share a batch."""
    max_context: Annotated[int, Field(ge=2, le=100_000_000)] | None = None
    """Most tokens of a conversation with its answer, for causal-lm and preference, up to what the
    model has positions for; left out, `data.max_length` of the job that trained it."""
    adapters: AdaptersSpec | None = None
    """Adapters of language models, published with `model.adapter.merge: false`, that share a base:
    requests name one in `model`, as `name@version`. They are read when they are first asked for."""
    limits: LimitsSpec = LimitsSpec()
    """Limits beyond which requests are refused."""
    slo: SloSpec | None = None
    """Service level; a version that does not keep it is not deployed."""
    rollout: RolloutSpec | None = None
    """How a new version replaces the present one; left out, it takes all traffic once it is
    ready."""
    auth: AuthSpec | None = None
    """Who may call; left out, anyone who reaches the endpoint."""
