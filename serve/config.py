"""What a replica is made of: a model version, and how its job serves it."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pydantic_core

from jobs.spec.serve import EngineName, ServeSpec
from jobs.spec.train import Precision
from jobs.training.config import Device
from serve.batching.policy import BLOCK_BATCHES, Limits
from serve.version import ModelVersion

ADJUSTABLE = ("batch_rows", "queue_tokens", "idle_wait_s", "timeout_s")
"""Fields of a configuration that may change while a replica answers."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """What a replica is made of."""

    version: ModelVersion
    route: str = ""
    """Path prefix under which requests come."""
    device: Device = "cpu"
    threads: int = 1
    engine: EngineName | None = None
    """None to choose the fastest that passes the gate."""
    precision: Precision | None = None
    """What engines compute in; None for any that passes the gate."""
    batch_rows: int = 64
    queue_tokens: int = Limits().queue_tokens
    idle_wait_s: float = 0.0
    timeout_s: float = 30.0
    """Longest that a request may take; clients may ask for less."""
    fronts: int | None = 0
    """Processes that take requests for this one; None for as many as suit the device."""
    token_hashes: tuple[str, ...] = ()
    """SHA-256 of accepted bearer tokens, in hex."""
    tokens_file: str = ""
    """File of more of them; without either the endpoint is open."""

    @property
    def adjustable(self) -> dict[str, float]:
        """What `adjust` of a server takes."""
        return {name: getattr(self, name) for name in ADJUSTABLE}

    @property
    def fingerprint(self) -> str:
        """The same for configurations that a running replica can be adjusted to."""
        same = replace(self.version, path="", url="", metrics={})  # wherever it was read
        kept = {k: v for k, v in asdict(self).items() if k not in ADJUSTABLE}
        kept["version"] = asdict(same)
        return hashlib.sha256(pydantic_core.to_json(kept)).hexdigest()

    def limits(self, batch_tokens: int, *, is_packed: bool) -> Limits:
        """Of a batcher whose batches hold so many tokens."""
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
    """The configuration of a replica on a route, with the hashes of the tokens it accepts."""
    return ReplicaConfig(
        version=version,
        route=route,
        device="cuda" if is_gpu else "cpu",
        threads=1 if is_gpu else spec.accelerators.count,
        engine=None if spec.engine == "auto" else spec.engine,
        precision=None if spec.precision == "auto" else spec.precision,
        batch_rows=spec.batching.max_batch_size,
        queue_tokens=spec.limits.queue_tokens,
        idle_wait_s=spec.batching.max_wait.total_seconds(),
        timeout_s=spec.limits.timeout.total_seconds(),
        fronts=None if spec.fronts == "auto" else spec.fronts,
        token_hashes=tuple(token_hashes),
        tokens_file=(spec.auth.tokens_file or "") if spec.auth else "",
    )
