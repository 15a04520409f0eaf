"""The worker's side of a group: runs the work, and sends what happens to the driver in bundles."""

import os
import time
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import ray.util
import ray.util.queue

from cluster import catalogue, labels
from cluster.placement import Placement
from jobs.errors import ClusterError, WinnowError, first_line
from jobs.training.events import Event, Stepped
from orchestrator.stages import causes

NICENESS = 15
"""Of work: what Ray gives all its workers, but for clusters of ours, where replicas keep 0."""
REPORT_INTERVAL_S = 0.5
"""Events are sent in bundles, because each message costs about a millisecond."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A worker is up and holds its device."""

    placement_group: str
    """Hex id of the Ray placement group."""
    rank: int
    node: str
    """Its Ray id."""


Message = list[Event] | causes.Failure | Grouped


def check_node(placement: Placement) -> None:
    """Raise ClusterError in a worker that is not on a node of its placement.

    A measurement taken on other hardware than it is filed under would be worse than none.
    """
    context = ray.get_runtime_context()
    sku = context.get_node_labels().get(labels.SKU, placement.sku)
    if placement.sku == catalogue.CPU:
        sku = catalogue.CPU  # every node has cores, whatever accelerators it is named for
    if context.get_node_id() not in placement.node_ids or sku != placement.sku:
        raise ClusterError(f"a worker of {placement.name} was started on a node of {sku}")


def lower_priority() -> None:
    """Let endpoints on this machine, and Ray's own processes, have the cores first."""
    os.nice(max(0, NICENESS - os.nice(0)))


def run_worker(config: dict[str, Any]) -> None:
    """Ray Train's loop of one worker; `config` is what the driver gave it."""
    rank = ray.train.get_context().get_world_rank()
    with _Sender(config["messages"], config["orders"], rank) as sender:
        check_node(config["placement"])
        lower_priority()
        sender.announce()
        if config["orders"] is not None:
            config["work"](config["payload"], sender.report, sender.must_leave)
        else:
            config["work"](config["payload"], sender.report)


class _Sender:
    """Sends a worker's events in bundles, and its failure when it has one."""

    def __init__(
        self, messages: ray.util.queue.Queue, orders: ray.util.queue.Queue | None, rank: int
    ) -> None:
        self._messages, self._orders, self._rank = messages, orders, rank
        self._pending: list[Event] = []
        self._sent = self._asked = 0.0
        self._must_leave = False

    def report(self, event: Event) -> None:
        """Take an event; frequent ones are held back for a moment."""
        self._pending.append(event)
        is_due = time.monotonic() - self._sent >= REPORT_INTERVAL_S
        if is_due or not isinstance(event, Stepped):
            self._flush()

    def announce(self) -> None:
        """Say where this worker is and which devices its group holds."""
        group = ray.util.get_current_placement_group().id.hex()
        node = ray.get_runtime_context().get_node_id()
        self._messages.put(Grouped(group, self._rank, node))

    def must_leave(self) -> bool:
        """Whether the main worker was asked to save and end; looked up every half second."""
        now = time.monotonic()
        if self._orders is not None and self._rank == 0 and now - self._asked >= REPORT_INTERVAL_S:
            self._asked = now
            self._must_leave = self._must_leave or not self._orders.empty()
        return self._must_leave

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._flush()
        if isinstance(error, Exception):
            self._messages.put(causes.Failure(_words(error), causes.of_worker(error), self._rank))

    def _flush(self) -> None:
        if self._pending:
            self._messages.put(self._pending)
        self._pending, self._sent = [], time.monotonic()


def _words(error: Exception) -> str:
    """What an error says, with its kind where it is not one of ours."""
    if isinstance(error, WinnowError):
        return str(error)
    kind, clause = type(error).__name__, first_line(error)
    return clause if clause.startswith(kind) else f"{kind}: {clause}"
