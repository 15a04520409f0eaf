"""A worker group that stays between the trials of one process, and runs one order after another."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import ray.util.queue

from cluster.placement import Placement
from jobs.training.config import Device
from jobs.training.events import Report
from jobs.training.probing.probe import free_memory
from jobs.training.world import World, join
from orchestrator.stages.devices import release
from orchestrator.stages.failures import BusyError, GroupError
from orchestrator.stages.group import DeviceWait, Start, Work, queue_here, stream
from orchestrator.stages.secrets import Secrets

ORDER_POLL_S = 60.0
"""How long rank 0 waits for an order before it tells the others that it is still there; Ray Train
ends a group whose workers wait for each other for longer than COLLECTIVE_TIMEOUT_S."""
LEAVE_POLL_S = 0.5
"""How often rank 0 looks whether its order has been taken back."""
LEAVE_S = 45.0
"""How long the workers may take to end an order that was taken back; then the group is ended."""


@dataclass(frozen=True, slots=True)
class Order:
    """What all workers of a group do next: `work(payload, report, leave=…)`.

    Workers pass it to each other without Ray, so it has no secrets.
    """

    work: Work
    payload: object


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Ends the present order early; without one it does nothing."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an order."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """Where the workers of a kept group find their orders."""

    orders: ray.util.queue.Queue
    device: Device


class KeptGroup:
    """A Ray Train group on one placement for the orders of this process."""

    def __init__(
        self,
        placement: Placement,
        secrets: Secrets,
        name: str,
        storage: Path,
        device_wait: DeviceWait,
    ) -> None:
        """Starts nothing yet: the workers start with the first order."""
        self.groups: list[str] = []
        """Hex ids of its placement groups."""
        self._orders = queue_here()
        start = Start(
            secrets.bound_to(follow),
            _Standing(self._orders, placement.device),
            placement,
            name,
            storage,
            self.groups.append,
        )
        # `Finished` is none of the events of a training run
        self._events: Generator[Any, None, None] = stream(start, device_wait)

    def run(self, work: Work, payload: object, report: Report) -> None:
        """Run one order and pass on its events.

        Raises:
            GroupError: if a worker fails, is lost or hangs.
            BusyError: if the devices stay busy.
        """
        self._orders.put(Order(work, payload))
        self._pass_on(report)

    def take_back(self) -> bool:
        """End an order that `report` has left by an exception; returns whether the workers live."""
        self._orders.put(TakenBack())
        late = threading.Timer(LEAVE_S, self._release)
        late.start()
        try:
            self._pass_on(lambda _: None)
        except (GroupError, BusyError):
            return False
        finally:
            late.cancel()
        return True

    def close(self) -> None:
        """End the workers."""
        self._events.close()
        self._orders.shutdown(force=True)

    def _pass_on(self, report: Report) -> None:
        for event in self._events:
            if isinstance(event, Finished):
                return
            report(event)

    def _release(self) -> None:
        for group in self.groups:
            release(group)


def follow(standing: _Standing, report: Callable[[object], None]) -> None:
    """The work of a kept group: runs orders until the group is ended."""
    with join(standing.device) as world:
        while True:
            order = _next_order(standing.orders, world)
            if isinstance(order, Order):
                free_memory(world.device)
                order.work(order.payload, report, leave=_Leave(standing.orders, world))
                world.gather(None)  # all are done
                if world.is_main:
                    report(Finished())


def _next_order(orders: ray.util.queue.Queue, world: World) -> object:
    """Returns what rank 0 takes from the queue, on every worker; None if there is nothing yet."""
    taken = None
    if world.is_main:
        with contextlib.suppress(Empty):
            taken = orders.get(timeout=ORDER_POLL_S)
    return world.gather(taken)[0]


class _Leave:
    """Tells, on rank 0, whether the present order has been taken back."""

    def __init__(self, orders: ray.util.queue.Queue, world: World) -> None:
        self._orders, self._is_main = orders, world.is_main
        self._looked_s, self._is_over = time.monotonic(), False

    def __call__(self) -> bool:
        """Looks at most every LEAVE_POLL_S."""
        now = time.monotonic()
        if self._is_main and not self._is_over and now - self._looked_s >= LEAVE_POLL_S:
            self._looked_s, self._is_over = now, not self._orders.empty()
        return self._is_over
