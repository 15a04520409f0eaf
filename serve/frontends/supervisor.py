"""The fronts of a replica: begun, told where to listen, fed with scores, drained."""

import asyncio
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
from serve.batching.batcher import Batcher, Request
from serve.batching.client import Answer, QueueFullError
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
    new_loop,
)
from serve.http import app
from serve.http.handler import Handler, PredictHandler
from serve.http.metrics import Metrics

MOST = 6
"""More fronts than this were not faster in front of one HAProxy, see benchmarks/HISTORY.md."""
READY_S = 60.0
"""How long a front may take until it listens."""
RESTART_S = 1.0
"""How long after a front was lost the next begins."""
DRAIN_S = 10.0
"""How long fronts may take to answer what they have when the replica ends."""
_logger = logging.getLogger(__name__)


_current: list["FrontendSupervisor"] = []
"""The supervisor of this process, where its handler has frontends."""


def install(handler: Handler) -> "FrontendSupervisor | None":
    """Let this process answer with a handler; returns the supervisor of its frontends, if any.

    The frontends do not run before `open` is called.
    """
    app.install(handler)
    found = supervisor_of(handler)
    _current[:] = [found] if found else []
    return found


def current() -> "FrontendSupervisor | None":
    """The supervisor of this process's frontends."""
    return _current[-1] if _current else None


def supervisor_of(handler: Handler) -> "FrontendSupervisor | None":
    """The supervisor of as many frontends as a handler is configured with; None for none."""
    if not isinstance(handler, PredictHandler):
        return None
    wanted = handler.config.fronts
    number = fitting(handler.config.device) if wanted is None else wanted
    return FrontendSupervisor(handler, number) if number else None


def fitting(device: Device) -> int:
    """How many fronts suit a replica here: none before a CPU, else as each GPU has cores."""
    if device == "cpu":
        return 0
    cores = len(os.sched_getaffinity(0)) // max(1, nvml.count_gpus())
    return max(0, min(MOST, cores // 2 - 1))


class FrontendSupervisor:
    """The processes in front of one server. They end with this one, however it ends."""

    def __init__(self, handler: PredictHandler[Any], number: int) -> None:
        assert isinstance(handler.client, Batcher)
        self._handler, self._number, self._batcher = handler, number, handler.client
        self._where: Listen | None = None
        self._links = set[_Link]()
        self._listening = threading.Semaphore(0)
        self._is_closing = False
        self._loop = new_loop()

    async def open(self, host: str, port: int, behind: str) -> None:
        """Begin fronts at an address, which pass on to a URL of this process, until all listen.

        Raises DeployError when one does not.
        """
        threading.Thread(target=self._loop.run_forever, daemon=True, name="fronts").start()
        self._where = Listen(host, port, behind)
        for _ in range(self._number):
            asyncio.run_coroutine_threadsafe(self._begin(self._where), self._loop)
        for _ in range(self._number):
            if not await asyncio.to_thread(self._listening.acquire, timeout=READY_S):
                raise DeployError(
                    f"a process that takes requests at {host}:{port} did not begin within"
                    f" {READY_S:.0f} s; see the replica's log, or set serve.fronts to 0"
                )

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Tell all what changed of the server's configuration; those to come begin with it."""
        self._loop.call_soon_threadsafe(self._tell_all, Adjust(changes))

    async def close(self) -> None:
        """Let fronts answer what they have, and end. From any event loop."""
        if self._where is None:
            return
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._tell_all, Drain())
        links = list(self._links)
        await asyncio.gather(*(asyncio.to_thread(link.wait, DRAIN_S) for link in links))

    async def _begin(self, where: Listen) -> None:
        if self._is_closing:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "serve.frontends.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a key that interrupts this process is not for them
            )
        link = _Link(
            self._batcher, self._handler.metrics, process, self._listening.release, self._lost
        )
        await self._loop.create_unix_connection(lambda: link.wire, sock=ours)
        self._links.add(link)
        tokenizer = self._batcher.tokenizer.on_one_core()
        link.wire.send(Hello(self._handler.config, self._handler.choice, tokenizer))
        link.wire.send(where)

    def _tell_all(self, message: Any) -> None:
        for link in self._links:
            link.wire.send(message)

    def _lost(self, link: "_Link") -> None:
        self._links.discard(link)
        self._loop.run_in_executor(None, link.wait, DRAIN_S)  # or a zombie stays
        where = self._where
        if self._is_closing or where is None:
            return
        _logger.warning("a process in front of the engine ended; another takes its place")
        self._loop.call_later(RESTART_S, lambda: self._loop.create_task(self._begin(where)))


class _Link:
    """One front, as the replica sees it."""

    def __init__(
        self,
        batcher: Batcher,
        metrics: Metrics,
        process: "subprocess.Popen[bytes]",
        listens: Callable[[], None],
        lost: Callable[["_Link"], None],
    ) -> None:
        self._batcher, self._metrics = batcher, metrics
        self._process, self._listens, self._lost = process, listens, lost
        self._asked: dict[int, Request] = {}
        self.wire = Channel(self._take, self._gone)

    def wait(self, timeout_s: float) -> None:
        """Until it ended, by itself or by then."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _take(self, message: Any) -> None:
        match message:
            case Ask(number, rows, began):
                reply = functools.partial(self._reply, number)
                loop = asyncio.get_running_loop()
                try:
                    self._asked[number] = self._batcher.submit(rows, loop, reply, began)
                except QueueFullError as error:
                    self.wire.send(Found(number, error))
            case Left(number):
                if request := self._asked.pop(number, None):
                    self._batcher.leave(request)
            case Counted():
                self._count(message)
            case Listening():
                self._listens()

    def _count(self, news: Counted) -> None:
        for (path, status), count in news.requests.items():
            self._metrics.count(path, status, count)
        for name, count in news.callers.items():
            self._metrics.count_caller(name, count)
        self._metrics.texts.inc(news.texts)
        self._metrics.latency.add(news.latencies, news.total_s)

    def _reply(self, number: int, found: Answer | Exception) -> None:
        if request := self._asked.pop(number, None):
            self._batcher.leave(request)
            self.wire.send(Found(number, found))

    def _gone(self) -> None:
        for request in self._asked.values():
            self._batcher.leave(request)
        self._asked.clear()
        self._lost(self)
