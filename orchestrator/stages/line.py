"""Gives orders to the workers that a run keeps; a process that does so imports no torch."""

import collections
import contextlib
import itertools
import math
import os
import queue as queues
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import ray.cloudpickle
import ray.exceptions
import ray.util.queue

from jobs.errors import first_line
from jobs.training.events import Report
from orchestrator.decisions.recovery import Cause, Failed
from orchestrator.stages.devices import release
from orchestrator.stages.failures import BusyError, GroupError
from orchestrator.stages.leave_order import LEAVE

LEAVE_S = 45.0
"""How long the workers may take to end an order that was taken back; then the group is ended."""
ANSWER_POLL_S = 0.25
"""How long one request for an answer lasts: that of a process which is killed would take the next
answer."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Order:
    """What all workers of a group do next: `work(payload, report, leave=…)`, maybe with `kept=…`.

    Workers pass it to each other without Ray, so it has no secrets.
    """

    id: str
    call: bytes
    """What `packed` returned: the process that gives the order need not import what is in it."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Ends the present order early; without one it does nothing."""


@dataclass(frozen=True, slots=True)
class Began:
    """The first event of an order."""

    order: str
    group: str
    """Hex id of the placement group of rank 0."""
    nodes: frozenset[str]
    """Ray ids of the workers' nodes."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an order."""

    order: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The workers wait for devices."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The workers have ended; the next order starts others."""

    failed: Failed | None = None
    busy: str = ""
    """Why the workers did not get their devices, if that is so."""


def packed(work: Callable[..., object], payload: object, *, keeps: bool = False) -> bytes:
    """Returns a function and its payload, pickled for `Line.run`.

    With `keeps` the function gets `kept`, a `jobs.training.restart.Kept` that stays in the worker
    until an order without `keeps`.
    """
    return bytes(ray.cloudpickle.dumps((work, payload, keeps)))


@dataclass(frozen=True, slots=True)
class Line:
    """Gives orders to the workers of a run, from any process of it, one after another."""

    orders: ray.util.queue.Queue
    answers: ray.util.queue.Queue

    def run(
        self,
        call: bytes,
        report: Report,
        *,
        silence_s: float = math.inf,
        log: Callable[[str], None] = lambda _: None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a function that `packed` returned in all workers, and pass on its events.

        `silence_s` is the longest time without an event before the workers count as hung; `log`
        gets what the workers wait for; `on_begin` is called once they begin. Returns early if the
        workers have the order to leave.

        Raises:
            GroupError: if a worker fails, is lost or hangs.
            BusyError: if the devices stay busy.
        """
        with _lost_queues():
            self._run(call, report, silence_s, log, on_begin)

    def _run(
        self,
        call: bytes,
        report: Report,
        silence_s: float,
        log: Callable[[str], None],
        on_begin: Callable[[], None],
    ) -> None:
        order = Order(f"{os.getpid()}-{next(_numbers)}-{time.time_ns():x}", call)
        self._forget()
        self.orders.put(order)
        heard = _Heard()
        while True:
            event = self._next(heard, silence_s)
            if isinstance(event, Ended):
                _raise(event)
                return
            if isinstance(event, Finished) and event.order == order.id:
                return
            if isinstance(event, Waiting):
                log(event.text)
            elif isinstance(event, Began):
                heard.began = event if event.order == order.id else None
                if heard.began:
                    on_begin()
            elif heard.began:  # and none of an order whose giver is gone
                self._pass_on(event, report, heard.began, heard.later)

    def renew(self) -> None:
        """End the workers, so that the next order has fresh processes."""
        with contextlib.suppress(GroupError, BusyError, queues.Empty), _lost_queues():
            self._forget()
            self.orders.put(LEAVE)
            while not isinstance(event := self._answers(LEAVE_S)[0], Ended):
                pass
            _raise(event)

    def _answers(self, timeout_s: float) -> list[object]:
        """Returns what comes next, events of the workers or what became of them."""
        found = self.answers.get(timeout=timeout_s)
        return found if isinstance(found, list) else [found]

    def _next(self, heard: "_Heard", silence_s: float) -> object:
        """Returns what comes next; raises GroupError after a silence of an order that has begun."""
        heard_s, began = time.monotonic(), heard.began
        while not heard.later:
            with contextlib.suppress(queues.Empty):
                heard.later.extend(self._answers(ANSWER_POLL_S))
                break
            if began and time.monotonic() - heard_s > silence_s:
                release(began.group)
                text = f"the workers reported nothing for {silence_s:.0f} s (train.hang_after)"
                raise GroupError(Failed(Cause.HANG, text, began.nodes))
        return heard.later.popleft()

    def _pass_on(
        self, event: object, report: Report, began: Began, later: Iterable[object]
    ) -> None:
        try:
            report(event)  # type: ignore[arg-type]  # the events of whoever gave the order
        except SystemExit:  # Tune stops this trial early
            if not _is_over(later):
                self._take_back(began)
            raise

    def _take_back(self, began: Began) -> None:
        """End the present order; end the workers if they have not left it in LEAVE_S."""
        self.orders.put(TakenBack())
        deadline = time.monotonic() + LEAVE_S
        with contextlib.suppress(queues.Empty):
            while (left_s := deadline - time.monotonic()) > 0:
                if _is_over(self._answers(left_s)):
                    return
        release(began.group)

    def _forget(self) -> None:
        """Drop the answers to earlier orders, whose givers may be gone."""
        with contextlib.suppress(queues.Empty):
            while True:
                self.answers.get_nowait()


@dataclass(slots=True)
class _Heard:
    """What an order's giver has heard so far."""

    began: Began | None = None
    later: collections.deque[object] = field(default_factory=collections.deque)
    """Events that came together with the last one."""


@contextlib.contextmanager
def _lost_queues() -> Iterator[None]:
    """Raises GroupError where a queue is lost, as with its node."""
    try:
        yield
    except ray.exceptions.RayError as error:
        text = f"the workers cannot be given orders: {first_line(error)}"
        raise GroupError(Failed(Cause.LOST_NODE, text)) from None


def _is_over(events: Iterable[object]) -> bool:
    """Returns whether an order has ended with one of these events."""
    return any(isinstance(event, Finished | Ended) for event in events)


def _raise(ended: Ended) -> None:
    if ended.failed:
        raise GroupError(ended.failed)
    if ended.busy:
        raise BusyError(ended.busy)
