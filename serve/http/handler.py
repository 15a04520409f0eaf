"""The interface between `serve.http` and a task: a handler answers the task's requests.

A task implements `Handler`. If one JSON body is answered with one JSON body from the scores of
texts, it implements `PredictHandler` instead. A handler needs neither Ray nor a transport.
"""

import abc
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
    answered,
)
from serve.batching.rows import Input, Text
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.auth import Authenticator
from serve.http.errors import INTERNAL_ERROR, HttpError
from serve.http.metrics import Metrics
from serve.http.tracing import tracing_of

COLLECT_OBJECTS = 20_000
"""Number of new objects after which Python's garbage collector runs."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response with its complete body."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the metrics count of an answered request."""

    texts: int
    begin: float
    """Arrival of the complete body by `time.perf_counter`."""


OnResponse = Callable[["HttpResponse | HttpError"], None]
"""Called with the response to a request, or with the error that becomes the response."""


class Handler(abc.ABC):
    """Answers the requests of one replica."""

    path: ClassVar[str]
    """Path for the POST of predictions, below the endpoint's route."""
    other_paths: ClassVar[tuple[str, ...]] = ()
    """Further paths of POSTs that the model answers; the metrics count each by itself."""

    def __init__(self, config: ReplicaConfig, metrics: Metrics) -> None:
        """Sets up tokens and tracing.

        Raises:
            DeployError: if the tokens file is unusable or the exporter of traces is missing.
        """
        self.config, self.metrics = config, metrics
        self.authenticator = Authenticator(config.token_hashes, config.tokens_file)
        self.tracing = tracing_of(config.version, self.path)

    @property
    @abc.abstractmethod
    def info(self) -> Any:
        """Name, version, engine and limits of the model, as a pydantic model."""

    @property
    @abc.abstractmethod
    def load(self) -> Load:
        """The requests that wait now."""

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Changes fields named in `ADJUSTABLE`, from the next request on."""
        self.config = replace(self.config, **changes)

    def scrape(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return self.metrics.scrape(self.load)


Request = TypeVar("Request")


class PredictHandler(Handler, Generic[Request]):
    """Answers requests for predictions from the scores of their texts.

    Subclasses parse the request's body and render the scores.
    """

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, metrics)
        self.choice, self.client = choice, client

    @abc.abstractmethod
    def parse(self, body: bytes) -> tuple[Request, Sequence[Input]]:
        """Returns the request in a body, and its texts or rows; raises HttpError."""

    @abc.abstractmethod
    def render(self, request: Request, answer: Answer) -> HttpResponse:
        """Returns the response to a request, from the scores of its texts; raises HttpError."""

    @property
    def load(self) -> Load:
        """The requests that wait now."""
        return self.client.load

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Changes fields named in `ADJUSTABLE`, from the next request on.

        On a GPU, the first batch of a new shape is slower, because its graph is captured then.
        """
        super().adjust(changes)
        if isinstance(self.client, Batcher):
            before = self.client.limits
            self.client.limits = self.config.limits(before.batch_tokens, is_packed=before.is_packed)

    def submit(self, body: bytes, timeout_s: float, on_response: OnResponse) -> Any:
        """Starts to answer a request and returns a ticket for `cancel`.

        Args:
            body: The JSON body of the request.
            timeout_s: Longest time until the answer.
            on_response: Called on this event loop, once or more often; only the first call counts.

        Raises:
            HttpError: for a body that cannot be answered, or a full queue.
        """
        return self.submit_parsed(*self.parse(body), timeout_s, on_response)

    def submit_parsed(
        self,
        request: Request,
        inputs: Sequence[Input],
        timeout_s: float,
        on_response: OnResponse,
        counted: Counted | None = None,
    ) -> Any:
        """Starts to answer a request with these texts or rows; as `submit`.

        `counted` is what the metrics count; by default each input, from now on.
        """

        def on_answered(answer: Answer | Exception) -> None:
            if isinstance(answer, Exception):
                on_response(error_of(answer))
            else:
                self.respond(request, answer, on_response)

        return self._start(inputs, timeout_s, on_answered, counted)

    def respond(self, request: Request, answer: Answer, on_response: OnResponse) -> None:
        """Renders the response to a request, or the error of rendering it."""
        try:
            response = self.render(request, answer)
        except Exception as error:  # noqa: BLE001 - the batch's other requests get answers
            on_response(error_of(error))
        else:
            on_response(response)

    def headers_of(self, answer: Answer) -> dict[str, str]:
        """Returns the headers of a response: the model version, and the times of its batch."""
        return {
            "content-type": "application/json",
            "x-model-version": self.config.version.id,
            "x-batch-size": str(answer.batch_rows),
            "x-queue-ms": f"{1000 * answer.queue_s:.2f}",
            "x-infer-ms": f"{1000 * answer.infer_s:.2f}",
        }

    def cancel(self, ticket: Any) -> None:
        """Takes a request out of the queue."""
        self.client.cancel(ticket)

    async def predict(self, body: bytes, timeout_s: float) -> HttpResponse:
        """Returns the response to a request; raises HttpError.

        If the calling task is cancelled, the request's texts leave the queue.
        """
        response: HttpResponse = await answered(
            functools.partial(self.submit, body, timeout_s), self.cancel
        )
        return response

    async def score(self, texts: Sequence[Text], timeout_s: float) -> Answer:
        """Returns the scores of texts.

        Raises:
            HttpError: 503 if the queue is full, 504 after the timeout, 500 if the engine fails.
        """
        try:
            answer: Answer = await answered(
                functools.partial(self._start, texts, timeout_s), self.cancel
            )
        except Exception as error:  # noqa: BLE001 - no traceback reaches a client
            raise error_of(error) from None
        return answer

    def _start(
        self,
        texts: Sequence[Input],
        timeout_s: float,
        on_answered: Callable[[Any], None],
        counted: Counted | None = None,
    ) -> Any:
        """Queues texts; counts and traces their answer before `on_answered` is called."""
        counted = counted or Counted(len(texts), time.perf_counter())
        tracing = self.tracing
        context = contextvars.copy_context() if tracing else None  # has the request's span

        def count_and_forward(answer: Answer | Exception) -> None:
            if isinstance(answer, Answer):
                self.count(counted)
                if tracing and context:
                    sizes = counted.texts, answer.batch_rows
                    context.run(tracing.record_answer, *sizes, answer.queue_s, answer.infer_s)
            on_answered(answer)

        try:
            timeout_s = min(timeout_s, self.config.timeout_s)
            return self.client.start(texts, timeout_s, count_and_forward)
        except Exception as error:  # noqa: BLE001 - no traceback reaches a client
            raise error_of(error) from None

    def count(self, counted: Counted) -> None:
        """Counts an answered request."""
        self.metrics.count_answer(counted.texts, time.perf_counter() - counted.begin)


def error_of(error: Exception) -> HttpError:
    """Returns the HTTP error for an exception, and logs an exception of an unexpected type."""
    match error:
        case HttpError():
            return error
        case QueueFullError():
            message = "the queue is full; try again later"
            wait_s = max(1.0, error.retry_after_s)
            return HttpError(503, "overloaded", message, retry_after_s=wait_s)
        case DeadlineError():
            return HttpError(504, "deadline", "the request was not answered within its timeout")
        case NonFiniteScoresError():
            return HttpError(500, "model_failed", str(error))
        case InternalError():
            pass  # logged once for the whole batch
        case _:
            _logger.error("a request failed", exc_info=error)
    return HttpError(500, "internal", INTERNAL_ERROR)


def tune_garbage_collector() -> None:
    """Exempts all existing objects from garbage collection and raises its threshold.

    A collection over all objects of a loaded model stops the process for 0.1 to 0.3 s every few
    hundred requests. Python's default threshold of 700 objects runs the collector every few
    requests, which takes 7 % of their time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_OBJECTS)
