"""The handler of a classifier of tokens: parses texts and renders their entities."""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pydantic_core

from serve.batching.client import (
    Answer,
    DeadlineError,
    InferenceClient,
    Load,
    QueueFullError,
    answered,
)
from serve.batching.request_queue import tokens_of
from serve.batching.rows import Row, Text
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.errors import HttpError
from serve.http.handler import Counted, HttpResponse, OnResponse, error_of
from serve.http.metrics import Metrics
from serve.http.open_inference import InferHandler, Tensor, TensorInfo
from serve.tasks.token_classification import schemas
from serve.tasks.token_classification.schemas import PATH, EntityModelInfo, EntityRequest
from serve.tasks.token_classification.windows import WindowedText, Windows
from serve.version import fetched

INLINE_CHARACTERS = 4096
"""A request with more characters is tokenised on another thread than the event loop's."""
ENTITIES = "entities"
"""The output tensor of the Open Inference Protocol."""
NOTHING_READ = Answer([], is_cut=False, batch_rows=0, queue_s=0.0, infer_s=0.0)
"""The answer to texts without tokens, which need no engine."""


@dataclass(frozen=True, slots=True)
class WindowedRequest:
    """A request whose texts are divided into windows."""

    texts: Sequence[WindowedText]
    is_list: bool


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that is being tokenised or scored."""

    scoring: Any = None
    """The client's ticket; None while the request is being tokenised."""
    timer: asyncio.TimerHandle | None = None
    """Answers 504 at the deadline of a request that is tokenised on another thread."""
    is_ended: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The times of a request."""

    counted: Counted
    deadline: float
    """On the monotonic clock."""

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())


class TokenHandler(InferHandler[WindowedRequest]):
    """Answers requests with the entities of each text."""

    path = PATH
    longest_text = schemas.MAX_CHARACTERS

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, choice, client, metrics)
        self._labels = list(config.version.labels)
        self._windows = Windows(client.tokenizer)
        self._dividing: dict[Ticket, float] = {}
        """Tokens of each request that is being tokenised, estimated from its characters."""

    @property
    def info(self) -> EntityModelInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return EntityModelInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            labels=[label[2:] for label in self._labels if label.startswith("B-")],
            metrics=version.metrics,
            engine=self.choice.engine,
            max_length=version.max_length,
        )

    def parse(self, body: bytes) -> tuple[WindowedRequest, list[Row]]:
        """Returns the request in a body, and the rows of all its windows; raises HttpError."""
        return self._divided(schemas.parse(body))

    @property
    def load(self) -> Load:
        """The requests that wait now, and those that are being tokenised."""
        load = self.client.load
        requests = load.requests + len(self._dividing)
        return Load(requests, load.tokens + sum(self._dividing.values()), load.tokens_per_s)

    def submit(self, body: bytes, timeout_s: float, on_response: OnResponse) -> Ticket:
        """Starts to answer a request and returns a ticket for `cancel`; see `PredictHandler`."""
        return self._submit(schemas.parse(body), timeout_s, on_response)

    async def outputs(self, texts: Sequence[Text], timeout_s: float) -> list[Tensor]:
        """Returns a tensor with the entities of each text, as JSON; raises HttpError."""
        request = EntityRequest(inputs=[text for (text,) in texts])
        response: HttpResponse = await answered(
            functools.partial(self._submit, request, timeout_s), self.cancel
        )
        found = [_json(row["entities"]) for row in pydantic_core.from_json(response.body)]
        return [Tensor(name=ENTITIES, shape=[len(found)], datatype="BYTES", data=found)]

    def output_info(self) -> list[TensorInfo]:
        """Returns name, type and shape of the output tensor."""
        return [TensorInfo(name=ENTITIES, datatype="BYTES", shape=[-1])]

    def _submit(self, request: EntityRequest, timeout_s: float, on_response: OnResponse) -> Ticket:
        arrival = Arrival(
            Counted(len(request.texts), time.perf_counter()),
            time.monotonic() + min(timeout_s, self.config.timeout_s),
        )
        tokens, load = tokens_of([(text,) for text in request.texts]), self.load
        if load.tokens and load.tokens + tokens > self.config.queue_tokens:
            raise error_of(QueueFullError(load.backlog_s))
        ticket = Ticket()
        if sum(map(len, request.texts)) <= INLINE_CHARACTERS:
            self._score(ticket, self._divided(request), arrival, on_response)
        else:
            self._divide(ticket, request, tokens, arrival, on_response)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Takes a request out of the queue, or ends its tokenising after the current text."""
        ticket.is_ended.set()
        if ticket.timer is not None:
            ticket.timer.cancel()
        if ticket.scoring is not None:
            super().cancel(ticket.scoring)

    def respond(self, request: WindowedRequest, answer: Answer, on_response: OnResponse) -> None:
        """Renders the response to a request, a long one on another thread than the event loop's."""
        if sum(len(each.text) for each in request.texts) <= INLINE_CHARACTERS:
            super().respond(request, answer, on_response)
            return
        respond, loop = super().respond, asyncio.get_running_loop()

        def forward(response: HttpResponse | HttpError) -> None:
            loop.call_soon_threadsafe(on_response, response)

        loop.run_in_executor(None, respond, request, answer, forward)

    def render(self, request: WindowedRequest, answer: Answer) -> HttpResponse:
        """Returns the entities of a request's texts as JSON."""
        found, first = [], 0
        for windowed in request.texts:
            last = first + len(windowed.rows)
            found.append(self._entities(windowed, answer.scores[first:last]))
            first = last
        value = found if request.is_list else found[0]
        return HttpResponse(200, pydantic_core.to_json(value), self.headers_of(answer))

    def _divide(
        self,
        ticket: Ticket,
        request: EntityRequest,
        tokens: float,
        arrival: Arrival,
        on_response: OnResponse,
    ) -> None:
        """Tokenises a long request on another thread; `tokens` of it wait until then."""
        loop = asyncio.get_running_loop()

        def on_divided(future: "asyncio.Future[tuple[WindowedRequest, list[Row]]]") -> None:
            del self._dividing[ticket]
            if ticket.is_ended.is_set() or future.cancelled():
                return
            try:
                self._score(ticket, future.result(), arrival, on_response)
            except Exception as error:  # noqa: BLE001 - no traceback reaches a client
                on_response(error_of(error))

        self._dividing[ticket] = tokens
        ticket.timer = loop.call_later(arrival.left_s, on_response, error_of(DeadlineError()))
        dividing = loop.run_in_executor(None, self._divided, request, ticket.is_ended.is_set)
        dividing.add_done_callback(on_divided)

    def _divided(
        self, request: EntityRequest, is_over: Callable[[], bool] = lambda: False
    ) -> tuple[WindowedRequest, list[Row]]:
        texts = list[WindowedText]()
        for text in request.texts:
            if is_over():
                break
            texts += self._windows.of([text])
        rows = [row for text in texts for row in text.rows]
        return WindowedRequest(texts, isinstance(request.inputs, list)), rows

    def _score(
        self,
        ticket: Ticket,
        divided: tuple[WindowedRequest, list[Row]],
        arrival: Arrival,
        on_response: OnResponse,
    ) -> None:
        request, rows = divided
        if rows:
            ticket.scoring = self.submit_parsed(
                request, rows, arrival.left_s, on_response, arrival.counted
            )
        else:
            self.count(arrival.counted)
            respond = functools.partial(self.respond, request, NOTHING_READ, on_response)
            asyncio.get_running_loop().call_soon(respond)

    def _entities(self, windowed: WindowedText, scores: Sequence[Any]) -> dict[str, Any]:
        return {
            "entities": [
                {
                    "entity": each.entity,
                    "start": each.start,
                    "end": each.end,
                    "score": each.score,
                    "text": windowed.text[each.start : each.end],
                }
                for each in windowed.entities(scores, self._labels)
            ]
        }


def load(config: ReplicaConfig) -> TokenHandler:
    """Starts a warm classifier of tokens.

    Raises:
        CheckpointError: if a file of the model is missing or was altered.
        DeployError: if no engine passes the acceptance check.
    """
    from serve.engines import startup  # which imports torch, and frontend workers need none

    config = replace(config, version=fetched(config.version))
    metrics = Metrics(config.version.name, config.version.id)
    choice, batcher = startup.start(config, metrics.on_batch)
    return TokenHandler(config, choice, batcher, metrics)


def _json(value: Any) -> str:
    return pydantic_core.to_json(value).decode()
