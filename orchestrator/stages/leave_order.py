"""Orders the workers of a group to save and end, and records which workers it has."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import ray.util.queue

from orchestrator.stages import failures
from orchestrator.stages.worker import WorkerStarted

NOTICE_POLL_S = 5.0
"""How often the cluster is queried for draining nodes."""
LEAVE = "leave"
"""The order itself."""
GRACE_S = 90.0
"""How long a group may take to save and end after the order to leave."""


@dataclass(slots=True)
class Members:
    """The placement groups and nodes of a running worker group."""

    on_group: Callable[[str], None] | None
    ids: set[str] = field(default_factory=set)
    nodes: dict[int, str] = field(default_factory=dict)
    """Ray node ids by rank."""

    def add(self, worker: WorkerStarted) -> None:
        """Record where a worker runs."""
        self.nodes[worker.rank] = worker.node
        if worker.placement_group not in self.ids:
            self.ids.add(worker.placement_group)
            if self.on_group:
                self.on_group(worker.placement_group)


@dataclass(slots=True)
class LeaveOrder:
    """Orders the workers to save and end, once: on `leave`, or when one of their nodes drains."""

    orders: ray.util.queue.Queue | None
    leave: threading.Event | None
    members: Members
    sent_s: float | None = None
    """Monotonic time at which the order was sent."""
    checked_s: float = 0.0
    """Monotonic time of the last query for draining nodes."""
    draining: frozenset[str] = frozenset()
    """Ids of the group's nodes that are about to be removed."""

    def send_if_due(self) -> None:
        """Send the order if it is due and has not been sent."""
        if self.orders is None or self.sent_s is not None:
            return
        now = time.monotonic()
        if now - self.checked_s >= NOTICE_POLL_S:
            self.checked_s = now
            self.draining = failures.draining_nodes() & set(self.members.nodes.values())
        if self.draining or (self.leave and self.leave.is_set()):
            self.sent_s = now
            self.orders.put(LEAVE)

    @property
    def is_late(self) -> bool:
        """Whether the group has had GRACE_S since the order."""
        return self.sent_s is not None and time.monotonic() - self.sent_s > GRACE_S
