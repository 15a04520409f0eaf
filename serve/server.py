"""One replica's model: requests in, labels out, with limits and counts. No Ray and no transport."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pydantic_core

from jobs.spec.serve import EngineName, ServeSpec
from jobs.spec.train import Precision
from jobs.training.config import Device
from serve.access import Access, accepted_tokens, digest
from serve.api import ModelInfo, RefusedError, as_texts, parse
from serve.batcher import Answer, Batcher, DeadlineError, Load, ModelError, QueueFullError
from serve.batches import Limits
from serve.engines import captured_engine, choose
from serve.engines.captured_engine import CapturedEngine
from serve.engines.choose import Choice, Maker
from serve.engines.engine import Engine, Landing, softmax
from serve.engines.rows import Row, Text, Tokenizer
from serve.metrics import Metrics
from serve.routing import PREDICT
from serve.tracing import Tracing, tracing_of
from serve.version import ModelVersion, fetched

DEFAULT_TOKENS: dict[Device, int] = {"cpu": 512, "cuda": 4096}
"""Padded tokens of a batch where no other was measured."""
WARMUP_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
"""Widths in tokens that are run once before the first request."""


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
    token_hashes: tuple[str, ...] = ()
    """SHA-256 of accepted bearer tokens, in hex."""
    tokens_file: str = ""
    """File of more of them; without either the endpoint is open."""


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
        token_hashes=tuple(digest(token) for token in accepted_tokens(spec)),
        tokens_file=(spec.auth.tokens_file or "") if spec.auth else "",
    )


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

    def scrape(self) -> bytes:
        """Metrics in Prometheus' format."""
        ...


class Server:
    """A loaded, warm classifier that answers."""

    hot_path = PREDICT
    """What is answered at the door."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises CheckpointError when the model's files were altered."""
        version = fetched(config.version)
        config = replace(config, version=version)
        self.config = config
        self.access = Access(config.token_hashes, config.tokens_file)
        is_gpu = config.device == "cuda"  # faster than one core can tokenise
        tokenizer = Tokenizer(Path(version.path), version.max_length, is_spread=is_gpu)
        self.choice, engine = prepare(config, tokenizer)
        self.metrics = Metrics(version.name, version.id)
        self.tracing = tracing_of(version)
        self._labels = list(version.labels)
        limits = Limits(
            self.choice.batch_tokens, config.batch_rows, config.queue_tokens, config.idle_wait_s
        )
        warm_up(engine, limits, version.max_length)
        ahead = 1 if isinstance(engine, CapturedEngine) else 0
        launch = scored(engine)
        self.batcher = Batcher(launch, tokenizer, limits, self.metrics.on_batch, ahead=ahead)
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

    async def predict(self, body: bytes, timeout_s: float) -> Reply:
        """Answer a predict request; raises RefusedError."""
        request = parse(body)
        texts = as_texts(request.inputs, is_pair=self.config.version.is_pair)
        answer = await self.classify(texts, timeout_s)
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
        except QueueFullError as error:
            message = "too much is waiting; try again later"
            raise RefusedError(
                503, "overloaded", message, retry_after_s=max(1.0, error.retry_after_s)
            ) from None
        except DeadlineError:
            raise RefusedError(504, "deadline", "the answer would have come too late") from None
        except ModelError as error:
            raise RefusedError(500, "model_failed", str(error)) from None
        self.metrics.latency.observe(time.perf_counter() - begin)
        self.metrics.texts.inc(len(texts))
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


def warm_up(engine: Engine, limits: Limits, longest: int) -> None:
    """Run every shape of a batch that is captured, or some widths where none is."""
    if isinstance(engine, CapturedEngine):
        found = captured_engine.shapes(limits.batch_rows, limits.batch_tokens, longest)
    else:
        found = [(1, width) for width in WARMUP_WIDTHS if width <= longest]
    for rows, width in found:
        engine.run([Row((0,) * width, (0,) * width)] * rows)


def scored(engine: Engine) -> Callable[[Sequence[Row]], Landing]:
    """Launches batches whose landing gives probabilities; most engines are done by then."""
    if isinstance(engine, CapturedEngine):
        begin = engine.launch

        def launch(rows: Sequence[Row]) -> Landing:
            landing = begin(rows)
            return lambda: softmax(landing())

        return launch

    def run(rows: Sequence[Row]) -> Landing:
        found = softmax(engine.run(rows))
        return lambda: found

    return run


def prepare(config: ServerConfig, tokenizer: Tokenizer) -> tuple[Choice, Engine]:
    """The engine to serve with, loaded: the one asked for, or the fastest that passes the gate."""
    version = config.version
    folder = Path(version.path)
    maker = Maker(folder, Path(version.exports), tokenizer, config.device, config.threads)
    gate = choose.read_gate(folder)
    names = engines_for(config)
    if len(names) == 1 or not gate.rows:
        name = names[0] if len(names) == 1 else choose.REFERENCE
        return Choice(name, DEFAULT_TOKENS[config.device], 0.0), maker.make(name, gate)
    choice = choose.choose(maker, names, gate)
    return choice, maker.make(choice.engine, gate)


def engines_for(config: ServerConfig) -> tuple[EngineName, ...]:
    """Engines that may serve: the one asked for, or those that compute as asked."""
    if config.engine:
        return (config.engine,)
    known = choose.CPU_ENGINES if config.device == "cpu" else choose.GPU_ENGINES
    if config.precision is None:
        return known
    wanted = "fp32" if config.precision == "tf32" else config.precision
    return tuple(name for name in known if name.endswith(f"-{wanted}"))
