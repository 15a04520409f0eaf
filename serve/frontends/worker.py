"""A frontend worker: accepts requests for a replica, and tokenises and answers predictions.

    python -m serve.frontends.worker DESCRIPTOR

DESCRIPTOR is the file descriptor of an inherited socket that is connected to the replica. The
worker gets scores from the replica through it, and forwards all other requests to the replica.
"""

import asyncio
import itertools
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from serve.batching.client import Callback, DeadlineError, InferenceClient, InternalError, Load
from serve.batching.rows import Row, Text, Tokenizer
from serve.frontends.ipc import (
    Adjust,
    CancelRequest,
    Channel,
    Configure,
    Drain,
    Listen,
    Listening,
    MetricsDelta,
    ScoreRequest,
    ScoreResult,
    bound,
    new_loop,
)
from serve.frontends.reverse_proxy import ReverseProxy
from serve.http.asgi import Receive, Scope, Send
from serve.http.fast_path import connections
from serve.http.guard import RequestGuard, is_prediction
from serve.http.handler import PredictHandler, tune_garbage_collector
from serve.http.metrics import LatencyHistogram, Metrics
from serve.http.paths import relative
from serve.tasks.registry import endpoint_of

_logger = logging.getLogger(__name__)

INLINE_CHARACTERS = 4096
"""A request with more characters is tokenised on another thread than the event loop's."""
REPORT_S = 1.0
"""Time between two reports of metrics to the replica."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was sent to the replica."""

    number: int
    timer: asyncio.TimerHandle
    """Calls the request's callback with DeadlineError."""


class RemoteClient(InferenceClient):
    """Gets scores from the replica's engine over a channel."""

    def __init__(self, tokenizer: Tokenizer, channel: Channel) -> None:
        self._tokenizer, self._channel = tokenizer, channel
        self._numbers = itertools.count()
        self._waiting: dict[int, Callback] = {}

    @property
    def load(self) -> Load:
        """The number of requests that wait; their tokens and rate are known to the replica only."""
        return Load(len(self._waiting), 0.0, None)

    def start(self, inputs: Sequence[Text], timeout_s: float, on_answered: Callback) -> Ticket:
        """Tokenises texts and sends them to the replica; see `InferenceClient`."""
        loop, began, number = asyncio.get_running_loop(), time.monotonic(), next(self._numbers)

        def send(rows: Sequence[Row]) -> None:
            if number in self._waiting:
                self._channel.send(ScoreRequest(number, rows, began))

        def on_tokenised(future: asyncio.Future[list[Row]]) -> None:
            if error := future.exception():
                _logger.error("texts could not be tokenised", exc_info=error)
                on_answered(InternalError())
            else:
                send(future.result())

        if sum(len(part) for text in inputs for part in text) <= INLINE_CHARACTERS:
            rows = self._tokenizer.rows(inputs)
            self._waiting[number] = on_answered
            send(rows)
        else:
            self._waiting[number] = on_answered
            tokenising = loop.run_in_executor(None, self._tokenizer.rows, inputs)
            tokenising.add_done_callback(on_tokenised)
        return Ticket(number, loop.call_later(timeout_s, on_answered, DeadlineError()))

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request, and cancels it in the replica if that has not answered it."""
        ticket.timer.cancel()
        if self._waiting.pop(ticket.number, None):
            self._channel.send(CancelRequest(ticket.number))

    def on_result(self, message: ScoreResult) -> None:
        """Passes a result of the replica to its request's callback."""
        if on_answered := self._waiting.pop(message.number, None):
            on_answered(message.result)


class BufferedMetrics(Metrics):
    """Collects counts that are sent to the replica, which adds up those of all its workers."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self._new_requests, self._new_callers = Counter[tuple[str, int]](), Counter[str]()
        self._new_texts, self._new_latencies = 0, LatencyHistogram()

    def count(self, path: str, status: int, number: int = 1) -> None:
        """Counts requests by path and status."""
        self._new_requests[path, status] += number

    def count_caller(self, name: str, number: int = 1) -> None:
        """Counts requests by the name of their token."""
        self._new_callers[name] += number

    def count_answer(self, texts: int, seconds: float) -> None:
        """Counts one answered request with its number of texts and its latency."""
        self._new_texts += texts
        self._new_latencies.observe(seconds)

    def take_delta(self) -> MetricsDelta | None:
        """Returns the counts since the last call and resets them; None if there are none."""
        if not self._new_requests and not self._new_callers:
            return None
        latencies = self._new_latencies
        delta = MetricsDelta(
            self._new_requests,
            self._new_callers,
            self._new_texts,
            latencies.counts,
            latencies.total_s,
        )
        self._new_requests, self._new_callers = Counter(), Counter()
        self._new_texts, self._new_latencies = 0, LatencyHistogram()
        return delta


class FrontendWorker:
    """Handles the replica's messages, and serves HTTP until the replica drains the worker."""

    def __init__(self) -> None:
        self.channel = Channel(self._on_message, self._on_closed)
        self.ended = asyncio.Event()
        self._remote: RemoteClient | None = None
        self._handler: PredictHandler[Any] | None = None
        self._web: uvicorn.Server | None = None
        self._tasks = set[asyncio.Task[None]]()

    def _on_message(self, message: Any) -> None:
        match message:
            case ScoreResult():
                assert self._remote
                self._remote.on_result(message)
            case Configure(config, choice, tokenizer):
                metrics = BufferedMetrics(config.version.name, config.version.id)
                self._remote = RemoteClient(tokenizer, self.channel)
                endpoint = endpoint_of(config.version.task)
                self._handler = endpoint.in_frontend(config, choice, self._remote, metrics)
                tune_garbage_collector()
            case Listen() if self._handler:
                self._start(self._listen(message, self._handler))
            case Adjust(changes) if self._handler:
                self._handler.adjust(changes)
            case Drain():
                if self._web:
                    self._web.should_exit = True
                else:
                    self.ended.set()

    def _on_closed(self) -> None:
        os._exit(1)  # without the replica no request can be answered

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task whose failure ends the process; the replica then starts another worker."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_exit_on_failure)
        return task

    async def _listen(self, listen: Listen, handler: PredictHandler[Any]) -> None:
        proxy = ReverseProxy(listen.replica_url)
        guard = RequestGuard(proxy, lambda: handler)

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            path = relative(scope["path"], handler.config.route)
            is_answered_here = is_prediction(handler, path, scope)
            await (guard if is_answered_here else proxy)(scope, receive, send)

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
        reporting = self._start(self._report(handler, self._web))
        await self._web.serve(sockets=[bound(listen.host, listen.port, is_shared=True)])
        reporting.cancel()
        self._send_metrics(handler)
        self.ended.set()

    async def _report(self, handler: PredictHandler[Any], web: uvicorn.Server) -> None:
        """Reports that the worker listens, and then its metrics every REPORT_S."""
        while not web.started:
            await asyncio.sleep(0.01)
        self.channel.send(Listening())
        while True:
            await asyncio.sleep(REPORT_S)
            self._send_metrics(handler)

    def _send_metrics(self, handler: PredictHandler[Any]) -> None:
        assert isinstance(handler.metrics, BufferedMetrics)
        if delta := handler.metrics.take_delta():
            self.channel.send(delta)


def _exit_on_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        _logger.error("a frontend worker has failed", exc_info=error)
        os._exit(1)


async def _run(connected: socket.socket) -> None:
    worker = FrontendWorker()
    await asyncio.get_running_loop().create_unix_connection(lambda: worker.channel, sock=connected)
    await worker.ended.wait()
    await asyncio.sleep(0)  # sends the last packet


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(socket.socket(fileno=int(sys.argv[1]))))
