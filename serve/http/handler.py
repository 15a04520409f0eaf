"""What `serve.http` asks of a task: its paths, its limits, and answers to requests.

A task implements `Handler`, or `PredictHandler` where one JSON body is answered with one JSON body
from rows that are scored in batches. No Ray and no transport.
"""

import abc
import asyncio
import contextvars
import functools
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from serve.batching.batcher import Batcher
from serve.batching.client import (
    Answer,
    DeadlineError,
    InferenceClient,
    InternalError,
    Load,
    NonFiniteScoresError,
    QueueFullError,
    settle,
)
from serve.batching.rows import Text
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.auth import Access
from serve.http.errors import HttpError
from serve.http.metrics import Metrics
from serve.http.tracing import tracing_of

COLLECT_OBJECTS = 20_000
"""New objects after which the garbage collector looks among them."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response with its whole body."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


OnResponse = Callable[["HttpResponse | HttpError"], None]
"""Is called with the response to a request, or with the error that is its response."""


class Handler(abc.ABC):
    """Answers the requests of one replica."""

    path: ClassVar[str]
    """Where predictions are requested by POST, below the endpoint's route."""

    def __init__(self, config: ReplicaConfig, metrics: Metrics) -> None:
        """Raises DeployError when tokens or traces are configured and cannot be had."""
        self.config, self.metrics = config, metrics
        self.access = Access(config.token_hashes, config.tokens_file)
        self.tracing = tracing_of(config.version, self.path)

    @property
    @abc.abstractmethod
    def info(self) -> Any:
        """Which model answers, with its name, version and engine, as a pydantic model."""

    @property
    @abc.abstractmethod
    def load(self) -> Load:
        """What waits now."""

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Change fields named in `ADJUSTABLE`, from the next request on."""
        self.config = replace(self.config, **changes)

    def scrape(self) -> bytes:
        """Metrics in Prometheus' format."""
        return self.metrics.scrape(self.load)


Request = TypeVar("Request")


class PredictHandler(Handler, Generic[Request]):
    """Answers requests for predictions from the scores of their texts.

    Subclasses say how a body is read and how scores are written.
    """

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, metrics)
        self.choice, self.client = choice, client

    @abc.abstractmethod
    def parse(self, body: bytes) -> tuple[Request, Sequence[Text]]:
        """The request in a body, and its texts; raises HttpError."""

    @abc.abstractmethod
    def render(self, request: Request, answer: Answer) -> HttpResponse:
        """The response to a request, from the scores of its texts; raises HttpError."""

    @property
    def load(self) -> Load:
        """What waits now."""
        return self.client.load

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Change fields named in `ADJUSTABLE`, from the next request on.

        Shapes of larger batches are captured when the first of them is run.
        """
        super().adjust(changes)
        if isinstance(self.client, Batcher):
            before = self.client.limits
            self.client.limits = self.config.limits(before.batch_tokens, is_packed=before.is_packed)

    def submit(self, body: bytes, timeout_s: float, on_response: OnResponse) -> Any:
        """Begin to answer a request; `on_response` is called once or more often, on this loop.

        Returns what `cancel` takes. Raises HttpError for a body that cannot be answered.
        """
        request, texts = self.parse(body)

        def on_answered(found: Answer | Exception) -> None:
            try:
                if isinstance(found, Exception):
                    raise found
                response = self.render(request, found)
            except Exception as error:  # noqa: BLE001 - others of the batch wait for their answers
                on_response(error_of(error))
            else:
                on_response(response)

        return self._start(texts, timeout_s, on_answered)

    def cancel(self, ticket: Any) -> None:
        """Take a request out of the queue whose client no longer waits."""
        self.client.leave(ticket)

    async def predict(self, body: bytes, timeout_s: float) -> HttpResponse:
        """The response to a request; raises HttpError.

        When the caller is cancelled, the request's texts leave the queue.
        """
        future: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        ticket = self.submit(body, timeout_s, functools.partial(settle, future))
        try:
            return await future
        finally:
            self.cancel(ticket)

    async def score(self, texts: Sequence[Text], timeout_s: float) -> Answer:
        """The scores of texts; raises HttpError when there is no room or no time."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        ticket = self._start(texts, timeout_s, functools.partial(settle, future))
        try:
            return await future
        except Exception as error:  # noqa: BLE001 - no trace reaches a client
            raise error_of(error) from None
        finally:
            self.cancel(ticket)

    def _start(
        self, texts: Sequence[Text], timeout_s: float, on_answered: Callable[[Any], None]
    ) -> Any:
        """Queue texts, and count and trace their answer before it is handed on."""
        begin, tracing = time.perf_counter(), self.tracing
        context = contextvars.copy_context() if tracing else None  # where the request's span is

        def counted(found: Answer | Exception) -> None:
            if isinstance(found, Answer):
                self.metrics.answered(len(texts), time.perf_counter() - begin)
                if tracing and context:
                    sizes = len(texts), found.batch_rows
                    context.run(tracing.answered, *sizes, found.queue_s, found.infer_s)
            on_answered(found)

        try:
            return self.client.start(texts, min(timeout_s, self.config.timeout_s), counted)
        except Exception as error:  # noqa: BLE001 - no trace reaches a client
            raise error_of(error) from None


def error_of(error: Exception) -> HttpError:
    """The response to a request that failed with some exception."""
    match error:
        case HttpError():
            return error
        case QueueFullError():
            message = "too much is waiting; try again later"
            wait_s = max(1.0, error.retry_after_s)
            return HttpError(503, "overloaded", message, retry_after_s=wait_s)
        case DeadlineError():
            return HttpError(504, "deadline", "the answer would have come too late")
        case NonFiniteScoresError():
            return HttpError(500, "model_failed", str(error))
        case InternalError():
            pass  # logged once for all requests of its batch
        case _:
            _logger.error("a request failed", exc_info=error)
    return HttpError(500, "internal", "something went wrong here")


def spare_collector() -> None:
    """Exempt all present objects from garbage collection, and collect less often.

    Walking through all of them stopped everything for 0.1 to 0.3 s every few hundred requests. With
    Python's own threshold of 700 objects the collector ran every few requests, for 7 % of their
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_OBJECTS)
