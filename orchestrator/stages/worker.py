"""The worker's side of a group: runs the work and sends its events to the driver in batches."""

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
from orchestrator.stages import failures

NICENESS = 15
"""Niceness of training: Ray's default for workers. On the local cluster other workers keep 0."""
REPORT_INTERVAL_S = 0.5
"""How often events are sent; each message costs about a millisecond, so they are batched."""


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker has started and holds its device."""

    placement_group: str
    """Hex id of the Ray placement group."""
    rank: int
    node: str
    """Ray node id."""


Message = list[Event] | failures.Failure | WorkerStarted


def check_node(placement: Placement) -> None:
    """Refuse to work on a node outside the placement, whose measurements would be wrong.

    Raises:
        ClusterError: if this process is not on a node of the placement.
    """
    context = ray.get_runtime_context()
    sku = context.get_node_labels().get(labels.SKU, placement.sku)
    if placement.sku == catalogue.CPU:
        sku = catalogue.CPU  # every node has cores, whatever its SKU label
    if context.get_node_id() not in placement.node_ids or sku != placement.sku:
        raise ClusterError(f"a worker of {placement.name} was started on a node of {sku}")


def lower_priority() -> None:
    """Lower this process's priority below endpoints on this machine and Ray's own processes."""
    os.nice(max(0, NICENESS - os.nice(0)))


def run_worker(config: dict[str, Any]) -> None:
    """The training function of Ray Train; `config` has work, payload, placement and queues."""
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
    """Sends a worker's events in batches, and its failure."""

    def __init__(
        self, messages: ray.util.queue.Queue, orders: ray.util.queue.Queue | None, rank: int
    ) -> None:
        self._messages, self._orders, self._rank = messages, orders, rank
        self._pending: list[Event] = []
        self._sent = self._checked = 0.0
        self._must_leave = False

    def report(self, event: Event) -> None:
        """Send an event; step events are held back for up to REPORT_INTERVAL_S."""
        self._pending.append(event)
        is_due = time.monotonic() - self._sent >= REPORT_INTERVAL_S
        if is_due or not isinstance(event, Stepped):
            self._flush()

    def announce(self) -> None:
        """Send the node of this worker and the id of its placement group."""
        group = ray.util.get_current_placement_group().id.hex()
        node = ray.get_runtime_context().get_node_id()
        self._messages.put(WorkerStarted(group, self._rank, node))

    def must_leave(self) -> bool:
        """Returns whether rank 0 has the order to save and end; checks at most twice a second."""
        now = time.monotonic()
        is_due = now - self._checked >= REPORT_INTERVAL_S
        if self._orders is not None and self._rank == 0 and is_due:
            self._checked = now
            self._must_leave = self._must_leave or not self._orders.empty()
        return self._must_leave

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._flush()
        if isinstance(error, Exception):
            cause = failures.classify_worker_error(error)
            self._messages.put(failures.Failure(_message(error), cause, self._rank))

    def _flush(self) -> None:
        if self._pending:
            self._messages.put(self._pending)
        self._pending, self._sent = [], time.monotonic()


def _message(error: Exception) -> str:
    """Returns an error's first line, with the exception's type unless it is a WinnowError."""
    if isinstance(error, WinnowError):
        return str(error)
    kind, clause = type(error).__name__, first_line(error)
    return clause if clause.startswith(kind) else f"{kind}: {clause}"
