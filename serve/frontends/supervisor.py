"""Starts, configures and drains a replica's frontend workers, and answers their requests."""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cluster import nvml
from jobs.errors import DeployError
from jobs.training.config import Device
from serve.batching.batcher import Batcher
from serve.batching.client import Answer, QueueFullError
from serve.batching.requests import Request
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
    new_loop,
)
from serve.http import app
from serve.http.handler import Handler, PredictHandler
from serve.http.metrics import Metrics

MOST = 6
"""Most frontend workers; more were not faster behind one HAProxy, see benchmarks/HISTORY.md."""
READY_S = 60.0
"""Longest time until a new worker accepts requests."""
RESTART_S = 1.0
"""Time between the end of a worker and the start of its replacement."""
DRAIN_S = 10.0
"""Longest time for workers to answer their remaining requests when the replica ends."""
_logger = logging.getLogger(__name__)


_current: list["FrontendSupervisor"] = []
"""The supervisor of this process; empty if its handler has no frontend workers."""


def install(handler: Handler) -> "FrontendSupervisor | None":
    """Makes a handler the one of this process, and creates the supervisor of its workers.

    Returns None if the handler has no workers. The workers start when `open` is called.
    """
    app.install(handler)
    created = create_supervisor(handler)
    _current[:] = [created] if created else []
    return created


def current() -> "FrontendSupervisor | None":
    """Returns the supervisor of this process; None if there is none."""
    return _current[-1] if _current else None


def create_supervisor(handler: Handler) -> "FrontendSupervisor | None":
    """Creates a supervisor with the configured number of workers; None if that is 0."""
    if not isinstance(handler, PredictHandler):
        return None
    configured = handler.config.fronts
    number = default_workers(handler.config.device) if configured is None else configured
    return FrontendSupervisor(handler, number) if number else None


def default_workers(device: Device) -> int:
    """Returns the number of workers for a replica: 0 on a CPU, else by the cores for each GPU."""
    if device == "cpu":
        return 0
    cores = len(os.sched_getaffinity(0)) // max(1, nvml.count_gpus())
    return max(0, min(MOST, cores // 2 - 1))


class FrontendSupervisor:
    """Runs the frontend workers of one replica. They end when this process ends, even if killed."""

    def __init__(self, handler: PredictHandler[Any], number: int) -> None:
        assert isinstance(handler.client, Batcher)
        self._handler, self._number, self._batcher = handler, number, handler.client
        self._listen: Listen | None = None
        self._links, self._starting = set[_WorkerLink](), set[asyncio.Task[None]]()
        self._listening = threading.Semaphore(0)
        self._is_closing = False
        self._loop = new_loop()

    async def open(self, host: str, port: int, replica_url: str) -> None:
        """Starts the workers and returns once all of them accept requests.

        Args:
            host: Address of the workers.
            port: Port that the workers share.
            replica_url: URL of this process, for requests that workers do not answer.

        Raises:
            DeployError: if a worker does not accept requests within READY_S.
        """
        threading.Thread(target=self._loop.run_forever, daemon=True, name="frontends").start()
        self._listen = Listen(host, port, replica_url)
        for _ in range(self._number):
            self._loop.call_soon_threadsafe(self._start_soon, self._listen)
        for _ in range(self._number):
            if not await asyncio.to_thread(self._listening.acquire, timeout=READY_S):
                raise DeployError(
                    f"a frontend worker did not accept requests at {host}:{port} within"
                    f" {READY_S:.0f} s; see the replica's log, or set serve.fronts to 0"
                )

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Sends changed fields of the configuration to all workers.

        Workers that start later get them from the handler's configuration.
        """
        self._loop.call_soon_threadsafe(self._broadcast, Adjust(changes))

    async def close(self) -> None:
        """Ends the workers once they have answered their requests. Callable from any event loop."""
        if self._listen is None:
            return
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._broadcast, Drain())
        links = list(self._links)
        await asyncio.gather(*(asyncio.to_thread(link.wait, DRAIN_S) for link in links))

    def _start_soon(self, listen: Listen) -> None:
        task = self._loop.create_task(self._start_worker(listen))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_worker(self, listen: Listen) -> None:
        """Starts a worker; if that fails, tries again after RESTART_S."""
        if self._is_closing:
            return
        try:
            tokenizer = self._batcher.tokenizer.on_one_core()
            link = await self._start_process()
        except Exception:
            _logger.exception("a frontend worker cannot be started; trying again")
            self._loop.call_later(RESTART_S, self._start_soon, listen)
            return
        self._links.add(link)
        link.channel.send(Configure(self._handler.config, self._handler.choice, tokenizer))
        link.channel.send(listen)

    async def _start_process(self) -> "_WorkerLink":
        """Starts a worker's process and connects to it; raises OSError."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as failing:
            failing.callback(ours.close)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "serve.frontends.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    start_new_session=True,  # Ctrl+C reaches this process only, which drains it
                )
            failing.callback(process.wait)
            failing.callback(process.kill)
            link = _WorkerLink(
                self._batcher,
                self._handler.metrics,
                process,
                self._listening.release,
                self._on_lost,
            )
            await self._loop.create_unix_connection(lambda: link.channel, sock=ours)
            failing.pop_all()
        return link

    def _broadcast(self, message: Any) -> None:
        for link in self._links:
            link.channel.send(message)

    def _on_lost(self, link: "_WorkerLink") -> None:
        self._links.discard(link)
        self._loop.run_in_executor(None, link.wait, DRAIN_S)  # reaps the process
        listen = self._listen
        if self._is_closing or listen is None:
            return
        _logger.warning("a frontend worker ended unexpectedly; starting another one")
        self._loop.call_later(RESTART_S, self._start_soon, listen)


class _WorkerLink:
    """The replica's connection to one worker, with the worker's open requests."""

    def __init__(
        self,
        batcher: Batcher,
        metrics: Metrics,
        process: "subprocess.Popen[bytes]",
        on_listening: Callable[[], None],
        on_lost: Callable[["_WorkerLink"], None],
    ) -> None:
        self._batcher, self._metrics = batcher, metrics
        self._process, self._on_listening, self._on_lost = process, on_listening, on_lost
        self._requests: dict[int, Request] = {}
        self.channel = Channel(self._on_message, self._on_closed)

    def wait(self, timeout_s: float) -> None:
        """Waits for the worker's end; kills it after the timeout."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _on_message(self, message: Any) -> None:
        match message:
            case ScoreRequest(number, rows, began):
                on_answered = functools.partial(self._on_answered, number)
                loop = asyncio.get_running_loop()
                try:
                    self._requests[number] = self._batcher.submit(rows, loop, on_answered, began)
                except QueueFullError as error:
                    self.channel.send(ScoreResult(number, error))
            case CancelRequest(number):
                if request := self._requests.pop(number, None):
                    self._batcher.cancel(request)
            case MetricsDelta():
                self._count(message)
            case Listening():
                self._on_listening()

    def _count(self, delta: MetricsDelta) -> None:
        for (path, status), count in delta.requests.items():
            self._metrics.count(path, status, count)
        for name, count in delta.callers.items():
            self._metrics.count_caller(name, count)
        self._metrics.texts.inc(delta.texts)
        self._metrics.latency.add(delta.latencies, delta.total_s)

    def _on_answered(self, number: int, result: Answer | Exception) -> None:
        if request := self._requests.pop(number, None):
            self._batcher.cancel(request)
            self.channel.send(ScoreResult(number, result))

    def _on_closed(self) -> None:
        for request in self._requests.values():
            self._batcher.cancel(request)
        self._requests.clear()
        self._on_lost(self)
