"""One replica's model: requests in, labels out, with limits and counts. No Ray and no transport."""

import gc
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import pydantic_core

from jobs.spec.serve import EngineName, ServeSpec
from jobs.spec.train import Precision
from jobs.training.config import Device
from serve.access import Access, accepted_tokens, digest
from serve.api import ModelInfo, PredictRequest, RefusedError, as_texts, parse
from serve.asking import (
    Answer,
    Asking,
    DeadlineError,
    FailedError,
    Load,
    ModelError,
    QueueFullError,
)
from serve.batcher import Batcher
from serve.batches import BLOCK_BATCHES, Limits
from serve.engines.engine import Choice
from serve.engines.rows import Text
from serve.metrics import Metrics
from serve.routing import PREDICT
from serve.tracing import Tracing, tracing_of
from serve.version import ModelVersion

_logger = logging.getLogger(__name__)

ADJUSTABLE = ("batch_rows", "queue_tokens", "idle_wait_s", "timeout_s")
"""Fields of a configuration that may change while a replica answers."""
COLLECT_OBJECTS = 20_000
"""New objects after which the garbage collector looks among them."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
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
        return digest(pydantic_core.to_json(kept).decode())

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


def configure(version: ModelVersion, spec: ServeSpec, route: str, *, is_gpu: bool) -> ServerConfig:
    """What a replica on a route is made of. Raises DeployError without the tokens it needs."""
    return ServerConfig(
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
        token_hashes=tuple(digest(token) for token in accepted_tokens(spec)),
        tokens_file=(spec.auth.tokens_file or "") if spec.auth else "",
    )


def spare_collector() -> None:
    """Let the garbage collector leave alone what is there by now, and look less often.

    Walking through all of it stopped everything for 0.1 to 0.3 s every few hundred requests. With
    Python's own threshold of 700 objects it looked every few requests, for 7 % of their time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_OBJECTS)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to send."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Answering(Protocol):
    """What a replica answers with, whatever its task."""

    config: ServerConfig
    access: Access
    metrics: Metrics
    tracing: Tracing | None

    @property
    def hot_path(self) -> str | None:
        """Path that is answered at the door; None where there is none."""
        ...

    @property
    def info(self) -> Any:
        """Which model answers, with its name, version and engine."""
        ...

    @property
    def load(self) -> Load:
        """What waits now."""
        ...

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Change some of `ADJUSTABLE`, from the next request on."""
        ...

    def scrape(self) -> bytes:
        """Metrics in Prometheus' format."""
        ...


class Server:
    """A classifier that answers: requests in, labels out."""

    hot_path = PREDICT
    """What is answered at the door."""

    def __init__(
        self, config: ServerConfig, choice: Choice, batcher: Asking, metrics: Metrics
    ) -> None:
        version = config.version
        self.config, self.choice, self.metrics = config, choice, metrics
        self.batcher = batcher
        self.access = Access(config.token_hashes, config.tokens_file)
        self.tracing = tracing_of(version)
        self._labels = list(version.labels)
        self._headers = {"content-type": "application/json", "x-model-version": version.id}

    @property
    def info(self) -> ModelInfo:
        """Which model answers."""
        version = self.config.version
        return ModelInfo(
            name=version.name,
            version=version.id,
            labels=self._labels,
            metrics=version.metrics,
            engine=self.choice.engine,
            max_length=version.max_length,
            is_pair=version.is_pair,
        )

    @property
    def load(self) -> Load:
        """What waits now."""
        return self.batcher.load

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Change some of `ADJUSTABLE`, from the next request on.

        Shapes of larger batches are captured when the first of them comes.
        """
        self.config = replace(self.config, **changes)
        if isinstance(self.batcher, Batcher):
            before = self.batcher.limits
            self.batcher.limits = self.config.limits(
                before.batch_tokens, is_packed=before.is_packed
            )

    async def predict(self, body: bytes, timeout_s: float) -> Reply:
        """Answer a predict request; raises RefusedError."""
        request, texts = self.read(body)
        return self.reply(request, await self.classify(texts, timeout_s))

    def read(self, body: bytes) -> tuple[PredictRequest, list[Text]]:
        """A predict request and its texts; raises RefusedError."""
        request = parse(body)
        return request, as_texts(request.inputs, is_pair=self.config.version.is_pair)

    def reply(self, request: PredictRequest, answer: Answer) -> Reply:
        """What is sent to who asked for predictions; raises RefusedError."""
        if answer.is_cut and not request.truncate:
            length = self.config.version.max_length
            message = f"an input has more than the {length} tokens that the model takes"
            raise RefusedError(422, "too_long", message)
        labelled = [self._label(scores, request.top_k) for scores in answer.scores]
        headers = {
            **self._headers,
            "x-batch-size": str(answer.batch_rows),
            "x-queue-ms": f"{1000 * answer.queue_s:.2f}",
            "x-infer-ms": f"{1000 * answer.infer_s:.2f}",
        }
        if answer.is_cut:
            headers["x-truncated"] = "true"
        value = labelled if isinstance(request.inputs, list) else labelled[0]
        return Reply(200, pydantic_core.to_json(value), headers)

    async def classify(self, texts: Sequence[Text], timeout_s: float) -> Answer:
        """Probabilities of texts; raises RefusedError when there is no room or no time."""
        begin = time.perf_counter()
        try:
            answer = await self.batcher.ask(texts, min(timeout_s, self.config.timeout_s))
        except (QueueFullError, DeadlineError, ModelError, FailedError) as error:
            raise refusal_of(error) from None
        self.metrics.answered(len(texts), time.perf_counter() - begin)
        if self.tracing:
            self.tracing.answered(len(texts), answer.batch_rows, answer.queue_s, answer.infer_s)
        return answer

    def _label(self, scores: Sequence[float], top_k: int | None) -> object:
        """The best label, or a list of the best; few labels are faster without numpy."""
        if top_k is None:
            best = max(range(len(scores)), key=scores.__getitem__)
            return {"label": self._labels[best], "score": scores[best]}
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:top_k]
        return [{"label": self._labels[index], "score": scores[index]} for index in order]

    def scrape(self) -> bytes:
        """Metrics in Prometheus' format."""
        return self.metrics.scrape(self.load)


def refusal_of(error: Exception) -> RefusedError:
    """How a client is told why it gets no answer."""
    match error:
        case RefusedError():
            return error
        case QueueFullError():
            message = "too much is waiting; try again later"
            wait_s = max(1.0, error.retry_after_s)
            return RefusedError(503, "overloaded", message, retry_after_s=wait_s)
        case DeadlineError():
            return RefusedError(504, "deadline", "the answer would have come too late")
        case ModelError():
            return RefusedError(500, "model_failed", str(error))
        case FailedError():
            pass  # once for all requests of its batch
        case _:
            _logger.error("a request failed", exc_info=error)
    return RefusedError(500, "internal", "something went wrong here")
