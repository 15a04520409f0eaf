"""The handler of a masked language model: one thread tokenises, fills and renders requests."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pydantic_core

from jobs.errors import DeployError
from serve.batching.client import DeadlineError, Load, QueueFullError
from serve.batching.request_queue import tokens_of
from serve.config import ReplicaConfig
from serve.engines import startup
from serve.engines.engine_factory import EngineFactory, eval_sample_of
from serve.http.handler import Handler, HttpResponse, error_of
from serve.http.metrics import Metrics
from serve.tasks.masked_lm.filler import Filler
from serve.tasks.masked_lm.schemas import PATH, FillRequest, MaskedInfo
from serve.version import fetched

SMOOTHING = 0.1
"""Weight of the newest request in the moving average of tokens per second."""


class FillMaskHandler(Handler):
    """Answers texts with the likeliest words in place of their masks."""

    path = PATH

    def __init__(self, config: ReplicaConfig) -> None:
        """Selects the engine and runs each usual width, so that later requests are not slower.

        Engines compute in fp32 unless the job names another engine or precision, because answers
        are probabilities.

        Raises:
            CheckpointError: if a file of the model is missing or was altered.
            DeployError: if the version is an adapter without its base model, or no engine passes
                the acceptance check.
        """
        version = fetched(config.version)
        if not (Path(version.path) / "config.json").exists():
            raise DeployError(
                f"{version.name} {version.id} is an adapter without its base model; train it with"
                " model.adapter.merge: true to serve it"
            )
        precision = config.precision or (None if config.engine else "fp32")
        config = replace(config, version=version, precision=precision)
        super().__init__(config, Metrics(version.name, version.id))
        self.choice, engine = startup.warm(
            config,
            EngineFactory.of(version, config.device, config.threads),
            eval_sample_of(version),
        )
        self._filler = Filler(Path(version.path), engine)
        self._headers = {"content-type": "application/json", "x-model-version": version.id}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fill-mask")
        self._waiting: dict[int, float] = {}
        """Tokens of each queued request, estimated from its characters."""
        self._tokens_per_s: float | None = None

    @property
    def load(self) -> Load:
        """The requests that wait now."""
        waiting = tuple(self._waiting.values())
        return Load(len(waiting), float(sum(waiting)), self._tokens_per_s)

    @property
    def info(self) -> MaskedInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return MaskedInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            metrics=version.metrics,
            engine=self.choice.engine,
            max_length=version.max_length,
            mask_token=self._filler.tokenizer.mask_token,
        )

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def fill(self, request: FillRequest, timeout_s: float) -> HttpResponse:
        """Returns the fillings of a request's texts as JSON, as transformers' pipeline does.

        Raises:
            HttpError: 422 for a text that cannot be filled, 503 if the queue is full, 504 if the
                answer takes too long.
        """
        begin, texts = time.perf_counter(), request.texts
        tokens, load = tokens_of([(text,) for text in texts]), self.load
        if load.tokens and load.tokens + tokens > self.config.queue_tokens:
            raise error_of(QueueFullError(load.backlog_s))
        is_over = threading.Event()
        job = self._thread.submit(self._answer, request, is_over.is_set)
        self._waiting[id(job)] = tokens
        try:
            limit_s = min(timeout_s, self.config.timeout_s)
            body = await asyncio.wait_for(asyncio.wrap_future(job), limit_s)
        except TimeoutError:
            raise error_of(DeadlineError()) from None
        finally:
            is_over.set()
            job.cancel()
            del self._waiting[id(job)]
        self.metrics.count_answer(len(texts), time.perf_counter() - begin)
        return HttpResponse(200, body, self._headers)

    def _answer(self, request: FillRequest, is_over: Callable[[], bool]) -> bytes:
        begin, filler = time.perf_counter(), self._filler
        rows = filler.rows(request.texts, self.config.version.max_length)
        filler.check(rows, request.top_k)
        limits = self.config.limits(self.choice.batch_tokens, is_packed=False)
        filled = filler.fill(rows, request.top_k, limits, is_over)
        found = [filler.render(each, is_over) for each in filled]
        rate = sum(map(len, rows)) / max(1e-6, time.perf_counter() - begin)
        before = self._tokens_per_s
        self._tokens_per_s = rate if before is None else before + SMOOTHING * (rate - before)
        return pydantic_core.to_json(found if isinstance(request.inputs, list) else found[0])
