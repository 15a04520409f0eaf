"""A front: a process that takes predictions, tokenises them, and asks its replica for scores.

    python -m serve.frontends.worker NUMBER     (of a connected socket that it inherits)

All else that it is asked it passes on to the replica, answers and all.
"""

import asyncio
import itertools
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from serve.batching.client import Callback, DeadlineError, InferenceClient, InternalError, Load
from serve.batching.rows import Row, Text, Tokenizer
from serve.frontends.ipc import (
    Adjust,
    Ask,
    Channel,
    Counted,
    Drain,
    Found,
    Hello,
    Left,
    Listen,
    Listening,
    bound,
    new_loop,
)
from serve.http.errors import HttpError
from serve.http.fast_path import connections
from serve.http.guard import (
    Message,
    Receive,
    RequestGuard,
    Scope,
    Send,
    is_prediction,
    refused,
    send_response,
)
from serve.http.handler import PredictHandler, spare_collector
from serve.http.metrics import Latencies, Metrics
from serve.http.paths import relative
from serve.tasks.registry import endpoint_of

_logger = logging.getLogger(__name__)

INLINE_CHARACTERS = 4096
"""More text than this is tokenised beside the event loop."""
COUNT_S = 1.0
"""How often the replica is told what was counted."""
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection, which are not passed on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the replica was asked."""

    number: int
    late: asyncio.TimerHandle


class RemoteClient(InferenceClient):
    """Asks the engine of the replica; in place of a batcher."""

    def __init__(self, tokenizer: Tokenizer, wire: Channel) -> None:
        self._tokenizer, self._wire = tokenizer, wire
        self._numbers = itertools.count()
        self._waiting: dict[int, Callback] = {}

    @property
    def load(self) -> Load:
        """What waits for the replica; it knows how long."""
        return Load(len(self._waiting), 0.0, None)

    def start(self, inputs: Sequence[Text], timeout_s: float, reply: Callback) -> Asked:
        """Ask for scores of some texts; see `InferenceClient`."""
        loop, began, number = asyncio.get_running_loop(), time.monotonic(), next(self._numbers)

        def send(rows: Sequence[Row]) -> None:
            if number in self._waiting:
                self._wire.send(Ask(number, rows, began))

        def tokenised(done: asyncio.Future[list[Row]]) -> None:
            if error := done.exception():
                _logger.error("texts could not be tokenised", exc_info=error)
                reply(InternalError())
            else:
                send(done.result())

        if sum(len(part) for text in inputs for part in text) <= INLINE_CHARACTERS:
            rows = self._tokenizer.rows(inputs)
            self._waiting[number] = reply
            send(rows)
        else:
            self._waiting[number] = reply
            beside = loop.run_in_executor(None, self._tokenizer.rows, inputs)
            beside.add_done_callback(tokenised)
        return Asked(number, loop.call_later(timeout_s, reply, DeadlineError()))

    def leave(self, asked: Asked) -> None:
        """Nobody waits for an answer any more: the replica is told, if it has not answered."""
        asked.late.cancel()
        if self._waiting.pop(asked.number, None):
            self._wire.send(Left(asked.number))

    def take(self, message: Found) -> None:
        """Hand over what the replica found."""
        if reply := self._waiting.pop(message.number, None):
            reply(message.found)


class BufferedMetrics(Metrics):
    """Counts that the replica is told, which keeps them for all its fronts."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self._new_requests, self._new_callers = Counter[tuple[str, int]](), Counter[str]()
        self._new_texts, self._new_latencies = 0, Latencies()

    def count(self, path: str, status: int, number: int = 1) -> None:
        """Count requests."""
        self._new_requests[path, status] += number

    def count_caller(self, name: str, number: int = 1) -> None:
        """Count requests under the name of their token."""
        self._new_callers[name] += number

    def answered(self, texts: int, seconds: float) -> None:
        """Count an answer."""
        self._new_texts += texts
        self._new_latencies.observe(seconds)

    def news(self) -> Counted | None:
        """What was counted since this was last asked, if anything."""
        if not self._new_requests and not self._new_callers:
            return None
        latencies = self._new_latencies
        found = Counted(
            self._new_requests,
            self._new_callers,
            self._new_texts,
            latencies.counts,
            latencies.total_s,
        )
        self._new_requests, self._new_callers = Counter(), Counter()
        self._new_texts, self._new_latencies = 0, Latencies()
        return found


class ReverseProxy:
    """Passes requests on to the replica, and its answers back."""

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._client = httpx.AsyncClient(timeout=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request."""
        try:
            response = await self._client.send(self._request(scope, receive), stream=True)
        except (UnicodeDecodeError, httpx.InvalidURL, httpx.LocalProtocolError):
            refusal = HttpError(400, "invalid_request", "the request breaks HTTP's own rules")
            await send_response(send, refused(refusal, ""), "")
            return
        except httpx.HTTPError:
            message = "the replica behind this process does not answer; try again"
            refusal = HttpError(503, "not_ready", message, retry_after_s=1)
            await send_response(send, refused(refusal, ""), "")
            return
        try:
            kept = [(k.lower(), v) for k, v in response.headers.raw if k.lower() not in HOP_BY_HOP]
            start = {"type": "http.response.start", "status": response.status_code}
            await send({**start, "headers": kept})
            async for piece in response.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    def _request(self, scope: Scope, receive: Receive) -> httpx.Request:
        """To the replica and nobody else, whatever the path says."""
        target = scope["raw_path"] + (b"?" if scope["query_string"] else b"")
        names = {name for name, _ in scope["headers"]}
        has_body = not names.isdisjoint((b"content-length", b"transfer-encoding"))
        return self._client.build_request(
            scope["method"],
            self._url.copy_with(raw_path=target + scope["query_string"]),
            headers=[pair for pair in scope["headers"] if pair[0] not in HOP_BY_HOP],
            content=_body(receive) if has_body else None,
        )


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    message: Message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        yield message.get("body", b"")


class FrontendWorker:
    """One front, from the replica's first word to its last."""

    def __init__(self) -> None:
        self.wire = Channel(self._take, self._gone)
        self.ended = asyncio.Event()
        self._remote: RemoteClient | None = None
        self._handler: PredictHandler[Any] | None = None
        self._web: uvicorn.Server | None = None
        self._tasks = set[asyncio.Task[None]]()

    def _take(self, message: Any) -> None:
        match message:
            case Found():
                assert self._remote
                self._remote.take(message)
            case Hello(config, choice, tokenizer):
                tally = BufferedMetrics(config.version.name, config.version.id)
                self._remote = RemoteClient(tokenizer, self.wire)
                endpoint = endpoint_of(config.version.task)
                self._handler = endpoint.in_frontend(config, choice, self._remote, tally)
                spare_collector()
            case Listen() if self._handler:
                self._tasks.add(asyncio.create_task(self._listen(message, self._handler)))
            case Adjust(changes) if self._handler:
                self._handler.adjust(changes)
            case Drain():
                if self._web:
                    self._web.should_exit = True
                else:
                    self.ended.set()

    def _gone(self) -> None:
        os._exit(1)  # the replica is gone: nothing here can be answered any more

    async def _listen(self, where: Listen, handler: PredictHandler[Any]) -> None:
        behind = ReverseProxy(where.behind)
        door = RequestGuard(behind, lambda: handler)

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            path = relative(scope["path"], handler.config.route)
            is_ours = is_prediction(handler, path, scope)
            await (door if is_ours else behind)(scope, receive, send)

        self._web = uvicorn.Server(
            uvicorn.Config(
                application,
                http=connections(lambda: handler),
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
            )
        )
        telling = asyncio.create_task(self._tell(handler, self._web))
        await self._web.serve(sockets=[bound(where.host, where.port, is_shared=True)])
        telling.cancel()
        self._send_news(handler)
        self.ended.set()

    async def _tell(self, handler: PredictHandler[Any], web: uvicorn.Server) -> None:
        while not web.started:
            await asyncio.sleep(0.01)
        self.wire.send(Listening())
        while True:
            await asyncio.sleep(COUNT_S)
            self._send_news(handler)

    def _send_news(self, handler: PredictHandler[Any]) -> None:
        assert isinstance(handler.metrics, BufferedMetrics)
        if news := handler.metrics.news():
            self.wire.send(news)


async def _run(connected: socket.socket) -> None:
    front = FrontendWorker()
    await asyncio.get_running_loop().create_unix_connection(lambda: front.wire, sock=connected)
    await front.ended.wait()
    await asyncio.sleep(0)  # the last packet


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(socket.socket(fileno=int(sys.argv[1]))))
