"""The handler of a masked language model: queues requests for one thread that fills masks."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.errors import DeployError
from serve.batching.client import Load
from serve.config import ReplicaConfig
from serve.http.errors import HttpError
from serve.http.handler import Handler
from serve.http.metrics import Metrics
from serve.tasks.masked_lm.filler import Filler, Row
from serve.tasks.masked_lm.schemas import PATH, FillRequest, MaskedInfo
from serve.version import fetched

SMOOTHING = 0.1
"""Weight of the newest request in the moving average of tokens per second."""


class FillMaskHandler(Handler):
    """Answers texts with the likeliest words in place of their masks."""

    path = PATH

    def __init__(self, config: ReplicaConfig) -> None:
        """Reads the model and fills one mask, so that later requests are not slower.

        Raises:
            CheckpointError: if a file of the model is missing or was altered.
            DeployError: if the version is an adapter without its base model.
        """
        version = fetched(config.version)
        if not (Path(version.path) / "config.json").exists():
            raise DeployError(
                f"{version.name} {version.id} is an adapter without its base model; train it with"
                " model.adapter.merge: true to serve it"
            )
        config = replace(config, version=version)
        super().__init__(config, Metrics(version.name, version.id))
        self.precision = config.precision or "fp32"
        self._filler = Filler(Path(version.path), config.device, self.precision, config.threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fill-mask")
        self._waiting: dict[int, int] = {}
        self._tokens_per_s: float | None = None
        self._thread.submit(self._filler.fill, [[self._filler.tokenizer.mask_token_id]], 1).result()

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
            engine=f"torch-{self.precision}",
            max_length=version.max_length,
            mask_token=self._filler.tokenizer.mask_token,
        )

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def fill(self, request: FillRequest, timeout_s: float) -> Any:
        """Returns the fillings of a request's texts, as transformers' pipeline does.

        Raises:
            HttpError: 422 for a text that cannot be filled, 503 if the queue is full, 504 if the
                answer takes too long.
        """
        begin = time.perf_counter()
        texts = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        rows = self._filler.rows(texts, self.config.version.max_length)
        tokens = sum(map(len, rows))
        load = self.load
        if load.tokens and load.tokens + tokens > self.config.queue_tokens:
            message = "the queue is full; try again later"
            raise HttpError(503, "overloaded", message, retry_after_s=max(1.0, load.backlog_s))
        job = self._thread.submit(self._answer, rows, request.top_k)
        self._waiting[id(job)] = tokens
        try:
            limit_s = min(timeout_s, self.config.timeout_s)
            found = await asyncio.wait_for(asyncio.wrap_future(job), limit_s)
        except TimeoutError:
            message = "the request was not answered within its timeout"
            raise HttpError(504, "deadline", message) from None
        finally:
            job.cancel()
            del self._waiting[id(job)]
        self.metrics.count_answer(len(rows), time.perf_counter() - begin)
        return found if isinstance(request.inputs, list) else found[0]

    def _answer(self, rows: list[Row], top_k: int) -> list[Any]:
        begin = time.perf_counter()
        found = [self._filler.render(filled) for filled in self._filler.fill(rows, top_k)]
        rate = sum(map(len, rows)) / max(1e-6, time.perf_counter() - begin)
        before = self._tokens_per_s
        self._tokens_per_s = rate if before is None else before + SMOOTHING * (rate - before)
        return found
