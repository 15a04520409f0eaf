"""The configuration of a replica: a model version and the `serve` settings of its job."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pydantic_core

from jobs.spec.serve import AdaptersSpec, EngineName, ServeSpec, TextEngineName
from jobs.spec.train import Precision
from jobs.training.config import Device
from serve.batching.policy import BLOCK_BATCHES, Limits
from serve.version import ModelVersion

ADJUSTABLE = ("batch_rows", "queue_tokens", "idle_wait_s", "timeout_s")
"""Fields that a running replica changes without a restart."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """The configuration of one replica."""

    version: ModelVersion
    route: str = ""
    """Path prefix of the requests that the replica receives."""
    device: Device = "cpu"
    threads: int = 1
    engine: EngineName | None = None
    """Engine that scores rows; None to select the fastest that passes the acceptance check."""
    text_engine: TextEngineName | None = None
    """Engine that writes a language model's answers; None to select the fastest one."""
    precision: Precision | None = None
    """Precision of the engine; None for any that passes the acceptance check."""
    batch_rows: int = 64
    queue_tokens: int = Limits().queue_tokens
    max_context: int | None = None
    """Most tokens of a conversation with its answer; None for the version's longest row."""
    adapters: AdaptersSpec | None = None
    """Adapters beside the version's own, if it is one."""
    idle_wait_s: float = 0.0
    timeout_s: float = 30.0
    """Longest time for one request; a client may set a shorter one in its header."""
    fronts: int | None = 0
    """Number of frontend workers; None for a number that suits the device."""
    token_hashes: tuple[str, ...] = ()
    """SHA-256 of accepted bearer tokens, in hex."""
    tokens_file: str = ""
    """File with further token hashes; an endpoint with neither needs no token."""

    @property
    def adjustable(self) -> dict[str, float]:
        """The fields in `ADJUSTABLE`, as `Handler.adjust` takes them."""
        return {name: getattr(self, name) for name in ADJUSTABLE}

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex, equal for configurations that differ in `ADJUSTABLE` fields only.

        A replica with the same fingerprint is adjusted; one with another is replaced.
        """
        same = replace(self.version, path="", url="", metrics={})  # differ between machines
        fixed = {k: v for k, v in asdict(self).items() if k not in ADJUSTABLE}
        fixed["version"] = asdict(same)
        return hashlib.sha256(pydantic_core.to_json(fixed)).hexdigest()

    def limits(self, batch_tokens: int, *, is_packed: bool) -> Limits:
        """Limits of a batcher whose batches hold up to `batch_tokens` tokens."""
        return Limits(
            batch_tokens=batch_tokens,
            batch_rows=self.batch_rows,
            queue_tokens=self.queue_tokens,
            idle_wait_s=self.idle_wait_s,
            block_batches=BLOCK_BATCHES[self.device],
            is_packed=is_packed,
        )


def configure(
    version: ModelVersion,
    spec: ServeSpec,
    route: str,
    *,
    is_gpu: bool,
    token_hashes: Sequence[str] = (),
) -> ReplicaConfig:
    """Builds a replica's configuration from the `serve` section of a job.

    Args:
        version: The model version to serve.
        spec: The job's `serve` section.
        route: Path prefix of the requests that the replica receives.
        is_gpu: True if the replica has a GPU.
        token_hashes: SHA-256 of the accepted bearer tokens, in hex.
    """
    engine: EngineName | None = None
    text_engine: TextEngineName | None = None
    match spec.engine:
        case "auto":
            pass
        case "torch" | "vllm" | "openvino" as name:
            text_engine = name
        case other:
            engine = other
    return ReplicaConfig(
        version=version,
        route=route,
        device="cuda" if is_gpu else "cpu",
        threads=1 if is_gpu else spec.accelerators.count,
        engine=engine,
        text_engine=text_engine,
        precision=None if spec.precision == "auto" else spec.precision,
        batch_rows=spec.batching.max_batch_size,
        queue_tokens=spec.limits.queue_tokens,
        max_context=spec.max_context,
        adapters=spec.adapters,
        idle_wait_s=spec.batching.max_wait.total_seconds(),
        timeout_s=spec.limits.timeout.total_seconds(),
        fronts=None if spec.fronts == "auto" else spec.fronts,
        token_hashes=tuple(token_hashes),
        tokens_file=(spec.auth.tokens_file or "") if spec.auth else "",
    )
