"""The handler of a classifier of tokens: parses texts and renders their entities."""

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic_core

from serve.batching.client import Answer, InferenceClient
from serve.batching.rows import Row
from serve.config import ReplicaConfig
from serve.engines import startup
from serve.engines.engine import Choice
from serve.http.handler import HttpResponse, OnResponse, PredictHandler, error_of
from serve.http.metrics import Metrics
from serve.tasks.token_classification import schemas
from serve.tasks.token_classification.schemas import PATH, EntityModelInfo, EntityRequest
from serve.tasks.token_classification.windows import WindowedText, Windows
from serve.version import fetched

INLINE_CHARACTERS = 4096
"""A request with more characters is tokenised on another thread than the event loop's."""
NOTHING_READ = Answer([], is_cut=False, batch_rows=0, queue_s=0.0, infer_s=0.0)
"""The answer to texts without tokens, which need no engine."""


@dataclass(frozen=True, slots=True)
class WindowedRequest:
    """A request whose texts are divided into windows."""

    texts: Sequence[WindowedText]
    is_list: bool


@dataclass(slots=True)
class Ticket:
    """A request that is being tokenised or scored."""

    scoring: Any = None
    """The client's ticket; None while the request is being tokenised."""
    is_ended: bool = False


class TokenHandler(PredictHandler[WindowedRequest]):
    """Answers requests with the entities of each text."""

    path = PATH

    def __init__(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> None:
        super().__init__(config, choice, client, metrics)
        self._labels = list(config.version.labels)
        self._windows = Windows(client.tokenizer)

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

    def submit(self, body: bytes, timeout_s: float, on_response: OnResponse) -> Ticket:
        """Starts to answer a request and returns a ticket for `cancel`; see `PredictHandler`."""
        request, ticket = schemas.parse(body), Ticket()
        if sum(map(len, request.texts)) <= INLINE_CHARACTERS:
            self._score(ticket, self._divided(request), timeout_s, on_response)
            return ticket
        began = time.monotonic()

        def on_divided(future: "asyncio.Future[tuple[WindowedRequest, list[Row]]]") -> None:
            if ticket.is_ended or future.cancelled():
                return
            try:
                left_s = timeout_s - (time.monotonic() - began)
                self._score(ticket, future.result(), left_s, on_response)
            except Exception as error:  # noqa: BLE001 - no traceback reaches a client
                on_response(error_of(error))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._divided, request).add_done_callback(on_divided)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Takes a request out of the queue."""
        ticket.is_ended = True
        if ticket.scoring is not None:
            super().cancel(ticket.scoring)

    def render(self, request: WindowedRequest, answer: Answer) -> HttpResponse:
        """Returns the entities of a request's texts as JSON."""
        found, first = [], 0
        for windowed in request.texts:
            last = first + len(windowed.rows)
            found.append(self._entities(windowed, answer.scores[first:last]))
            first = last
        value = found if request.is_list else found[0]
        return HttpResponse(200, pydantic_core.to_json(value), self.headers_of(answer))

    def _divided(self, request: EntityRequest) -> tuple[WindowedRequest, list[Row]]:
        texts = self._windows.of(request.texts)
        rows = [row for text in texts for row in text.rows]
        return WindowedRequest(texts, isinstance(request.inputs, list)), rows

    def _score(
        self,
        ticket: Ticket,
        divided: tuple[WindowedRequest, list[Row]],
        timeout_s: float,
        on_response: OnResponse,
    ) -> None:
        request, rows = divided
        if rows:
            ticket.scoring = self.submit_parsed(request, rows, timeout_s, on_response)
        else:
            render = functools.partial(self.render, request, NOTHING_READ)
            asyncio.get_running_loop().call_soon(lambda: on_response(render()))

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
    config = replace(config, version=fetched(config.version))
    metrics = Metrics(config.version.name, config.version.id)
    choice, batcher = startup.start(config, metrics.on_batch)
    return TokenHandler(config, choice, batcher, metrics)
