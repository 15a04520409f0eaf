"""A worker group that stays while a run goes on, and runs one order after another."""

import contextlib
import queue as queues
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
import ray.cloudpickle
import ray.util
import ray.util.queue

from jobs.training.config import Device
from jobs.training.events import WorkersReady
from jobs.training.restart import Kept, free_memory
from jobs.training.world import World, join
from orchestrator.stages.leave_order import LEAVE
from orchestrator.stages.line import Began, Finished, Order

ORDER_POLL_S = 60.0
"""How long rank 0 waits for an order before it tells the others that it is still there; Ray Train
ends a group whose workers wait for each other for longer than COLLECTIVE_TIMEOUT_S."""
GET_S = 0.2
"""How long one request for an order lasts: that of a worker which is killed would take the next
order, which is given later than this."""
LEAVE_POLL_S = 0.5
"""How often rank 0 looks whether its order has been taken back."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the workers of a kept group find their orders."""

    orders: ray.util.queue.Queue
    device: Device


def follow(standing: Standing, report: Callable[[Any], None]) -> None:
    """The work of a kept group: runs orders until it has the order to leave.

    It tells again and again that it is ready, which fails once nobody listens any more, and so ends
    a group that was given up while it started.
    """
    with join(standing.device) as world:
        if world.is_main:
            report(WorkersReady())
        desk = _Desk(standing.orders, world)
        while (item := desk.next()) != LEAVE:
            if isinstance(item, Order):
                desk.carry_out(item, report)
            elif world.is_main:
                report(WorkersReady())


class _Desk:
    """Takes the orders of a group, on every worker, and carries them out."""

    def __init__(self, orders: ray.util.queue.Queue, world: World) -> None:
        self._orders, self._world = orders, world
        self._taken: object = None
        """What rank 0 took from the queue to see why an order was to be left."""
        self._kept = Kept()

    def next(self) -> object:
        """Returns what rank 0 takes from the queue; None if there is nothing yet."""
        taken, self._taken = self._taken, None
        deadline = time.monotonic() + ORDER_POLL_S
        while self._world.is_main and taken is None and time.monotonic() < deadline:
            with contextlib.suppress(queues.Empty):
                taken = self._orders.get(timeout=GET_S)
        return self._world.gather(taken)[0]

    def carry_out(self, order: Order, report: Callable[[Any], None]) -> None:
        """Run an order; it has no last event if the group has to leave."""
        world = self._world
        nodes = frozenset(world.gather(ray.get_runtime_context().get_node_id()))
        if world.is_main:
            group = ray.util.get_current_placement_group().id.hex()
            report(Began(order.id, group, nodes))
        work, payload, keeps = ray.cloudpickle.loads(order.call)
        if not keeps:
            self._kept.drop()
            free_memory(world.device)
        leave, own = _Leave(self._orders, world), {"kept": self._kept} if keeps else {}
        work(payload, report, leave=leave, **own)
        del work, payload
        world.gather(None)  # all are done
        if not world.is_main:
            return
        if leave.is_over:
            self._taken = self._orders.get_nowait()
        if self._taken != LEAVE:
            report(Finished(order.id))


class _Leave:
    """Tells, on rank 0, whether the order has been taken back, or the group has to leave."""

    def __init__(self, orders: ray.util.queue.Queue, world: World) -> None:
        self._orders, self._is_main = orders, world.is_main
        self._looked_s, self.is_over = time.monotonic(), False

    def __call__(self) -> bool:
        """Looks at most every LEAVE_POLL_S."""
        now = time.monotonic()
        if self._is_main and not self.is_over and now - self._looked_s >= LEAVE_POLL_S:
            self._looked_s, self.is_over = now, not self._orders.empty()
        return self.is_over
