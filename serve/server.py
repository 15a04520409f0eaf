"""One replica's model: requests in, labels out, with limits and counts. No Ray and no transport."""

import hashlib
import hmac
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prometheus_client
import pydantic_core

from jobs.errors import DeployError
from jobs.spec.serve import EngineName, ServeSpec
from jobs.spec.train import Precision
from jobs.training import manifest
from jobs.training.config import Device
from serve.api import ModelInfo, RefusedError, as_texts, parse
from serve.batcher import Answer, Batcher, DeadlineError, Limits, ModelError, QueueFullError
from serve.engines import choose
from serve.engines.choose import Choice, Maker
from serve.engines.engine import Engine, softmax
from serve.engines.rows import Text, Tokenizer
from serve.version import ModelVersion

WARMUP_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
"""Widths in tokens that are run once before the first request."""
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram."""


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
    """SHA-256 of accepted bearer tokens, in hex; none for an open endpoint."""


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
    )


def accepted_tokens(spec: ServeSpec) -> list[str]:
    """Bearer tokens from the environment, none for an open endpoint; they stay in this process."""
    if spec.auth is None:
        return []
    tokens = os.environ.get(spec.auth.tokens_from, "").replace(",", " ").split()
    if not tokens:
        raise DeployError(
            f"serve.auth.tokens_from names {spec.auth.tokens_from}, which is not set or empty;"
            " put the accepted tokens into it, with spaces or commas between"
        )
    return tokens


def digest(token: str) -> str:
    """What replicas know of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to send."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Metrics:
    """Counters of one replica, for Prometheus."""

    def __init__(self, name: str, version: str) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        fixed: dict[str, Any] = {"registry": self.registry, "namespace": "winnow_serve"}
        info = prometheus_client.Info("model", "Which model answers.", **fixed)
        info.info({"name": name, "version": version})
        self.requests = prometheus_client.Counter(
            "requests",
            "Requests by path and status.",
            ("path", "status"),
            **fixed,
        )
        self._counted: dict[tuple[str, int], prometheus_client.Counter] = {}
        self.latency = prometheus_client.Histogram(
            "request_seconds",
            "From the whole body to the answer.",
            buckets=BUCKETS_S,
            **fixed,
        )
        self.texts = prometheus_client.Counter("texts", "Texts answered.", **fixed)
        self.batches = prometheus_client.Counter("batches", "Batches run.", **fixed)
        self.batch_rows = prometheus_client.Counter("batch_rows", "Rows of batches.", **fixed)
        self.batch_tokens = prometheus_client.Counter("batch_tokens", "Tokens of batches.", **fixed)
        self.engine_seconds = prometheus_client.Counter(
            "engine_seconds",
            "Time the engine worked.",
            **fixed,
        )
        self.queue_tokens = prometheus_client.Gauge("queue_tokens", "Tokens that wait.", **fixed)
        self.backlog = prometheus_client.Gauge(
            "backlog_seconds",
            "Until all that waits is answered.",
            **fixed,
        )

    def count(self, path: str, status: int) -> None:
        """Count a request; the lookup by labels is slow."""
        key = path, status
        if key not in self._counted:
            self._counted[key] = self.requests.labels(*key)
        self._counted[key].inc()

    def on_batch(self, rows: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.batches.inc()
        self.batch_rows.inc(rows)
        self.batch_tokens.inc(tokens)
        self.engine_seconds.inc(seconds)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return prometheus_client.generate_latest(self.registry)


class Server:
    """A loaded, warm model that answers."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises CheckpointError when the model's files were altered."""
        version = config.version
        manifest.verify(Path(version.path))
        self.config = config
        tokenizer = Tokenizer(Path(version.path), version.max_length)
        self.choice, engine = prepare(config, tokenizer)
        self.metrics = Metrics(version.name, version.id)
        self._labels = list(version.labels)
        for width in (w for w in WARMUP_WIDTHS if w <= version.max_length):
            texts = [("word " * width,) * (2 if version.is_pair else 1)]
            engine.run(tokenizer.rows(texts))
        limits = Limits(
            self.choice.batch_tokens, config.batch_rows, config.queue_tokens, config.idle_wait_s
        )
        self.batcher = Batcher(
            lambda rows: softmax(engine.run(rows)), tokenizer, limits, self.metrics.on_batch
        )
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

    def admits(self, authorization: str) -> bool:
        """Whether an Authorization header carries an accepted token."""
        if not self.config.token_hashes:
            return True
        scheme, _, token = authorization.partition(" ")
        offered = digest(token.strip())
        # every comparison is made, so that time tells nothing
        found = [hmac.compare_digest(offered, known) for known in self.config.token_hashes]
        return scheme.lower() == "bearer" and any(found)

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
        load = self.batcher.load
        self.metrics.queue_tokens.set(load.tokens)
        self.metrics.backlog.set(load.backlog_s)
        return self.metrics.text()


def prepare(config: ServerConfig, tokenizer: Tokenizer) -> tuple[Choice, Engine]:
    """The engine to serve with, loaded: the one asked for, or the fastest that passes the gate."""
    version = config.version
    folder = Path(version.path)
    maker = Maker(folder, Path(version.exports), tokenizer, config.device, config.threads)
    gate = choose.read_gate(folder)
    names = engines_for(config)
    if len(names) == 1 or not gate.rows:
        name = names[0] if len(names) == 1 else choose.REFERENCE
        return Choice(name, Limits().batch_tokens, 0.0), maker.make(name, gate)
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
