"""One Ray Train worker group running a function of `jobs.training`, as a stream of its events."""

import math
import os
import queue as queues
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.train
import ray.train.torch
import ray.util
import ray.util.queue
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback

from cluster import labels
from cluster.placement import Placement
from jobs.errors import first_line
from jobs.training.events import Event
from orchestrator.decisions.recovery import Cause, Failed
from orchestrator.stages import causes
from orchestrator.stages.causes import Failure, GroupError
from orchestrator.stages.devices import is_free, release, selector, worker_resources
from orchestrator.stages.worker import Grouped, Message, run_worker

COLLECTIVE_TIMEOUT_S = 300
"""A collective that takes longer has lost a worker."""
RESERVE_TIMEOUT_S = 20
"""How long Ray Train may take to reserve the devices of a group, before it is asked anew."""
BUSY_TIMEOUT_S = 120.0
"""How long busy devices are waited for where no job says."""
POLL_S = 1.0
END_TIMEOUT_S = 20.0
"""How long a group that is left early may take to end."""
SILENCE_S = 60
"""A worker that does not answer Ray for so long hangs."""
NOTICE_POLL_S = 5.0
"""How often the cluster is asked which nodes are about to be taken away."""
GRACE_S = 90.0
"""How long a group that is asked to leave may take to save."""

Report = Callable[[Event], None]
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(SILENCE_S),
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(RESERVE_TIMEOUT_S),
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": str(COLLECTIVE_TIMEOUT_S),
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
"""Of Ray Train, which reads them from the driver's environment."""

Work = Callable[..., object]
"""A function of a payload, a reporter and, where the group may be asked to leave, a question
whether it was; run by every worker of a group."""


@dataclass(slots=True)
class _Group:
    """What is known of a running group."""

    on_group: Callable[[str], None] | None
    ids: set[str] = field(default_factory=set)
    nodes: dict[int, str] = field(default_factory=dict)
    """By rank."""

    def take(self, grouped: Grouped) -> None:
        """Note where a worker is."""
        self.nodes[grouped.rank] = grouped.node
        if grouped.placement_group not in self.ids:
            self.ids.add(grouped.placement_group)
            if self.on_group:
                self.on_group(grouped.placement_group)


@dataclass(frozen=True, slots=True)
class Start:
    """A group to start, which runs `work(payload, report)` on every worker of a placement."""

    work: Work
    payload: object
    placement: Placement
    name: str
    storage: Path
    on_group: Callable[[str], None] | None = None
    """Told the group's id, for a `release` when this process is stopped from outside."""
    leave: threading.Event | None = None
    """When it is set, `work` is told so and has GRACE_S to end."""
    silence_s: float = math.inf
    """How long the workers may report nothing."""
    delayed: Callable[[Any, float], object] | None = None
    """The payload after so many seconds of waiting for devices; None where it is the same."""


@dataclass(slots=True)
class Patience:
    """How long a group may wait for devices that others hold, and how long it did."""

    limit_s: float = BUSY_TIMEOUT_S
    tell: Callable[[str], None] = lambda _: None
    """Told once that it waits."""
    waited_s: float = 0.0


def stream(start: Start, patience: Patience | None = None) -> Generator[Event, None, None]:
    """Start a group and yield what rank 0 reports.

    Another job may take the devices before the group has started: it is started again when they are
    free. Close the iterator when it is left early (`contextlib.closing`): that ends the group.
    Raises GroupError with the worker's own words or when the workers are silent for too long, or
    BusyError when the devices stay busy for longer than `patience` has.
    """
    patience = patience or Patience()
    while True:
        began = time.monotonic()
        try:
            yield from _stream(start)
            return
        except causes.BusyError as busy:
            _wait(start, patience, began, busy)
        waited_s = time.monotonic() - began
        patience.waited_s += waited_s
        if start.delayed:
            start = replace(start, payload=start.delayed(start.payload, waited_s))


def _wait(start: Start, patience: Patience, began: float, busy: causes.BusyError) -> None:
    """Until the devices are free; raises `busy` when the time is over, or at an order to leave."""
    if not patience.waited_s:
        name = start.placement.name
        patience.tell(f"another job or endpoint took the devices of {name}; waiting for them")
    while not is_free(start.placement):
        if not causes.is_alive(start.placement.node_ids):
            words = f"a node of {start.placement.name} was lost before the workers had started"
            raise GroupError(Failed(Cause.LOST_NODE, words)) from None
        is_asked_to_leave = start.leave is not None and start.leave.is_set()
        left_s = patience.limit_s - patience.waited_s - (time.monotonic() - began)
        if is_asked_to_leave or left_s <= 0:
            raise busy


def _stream(start: Start) -> Generator[Event, None, None]:
    os.environ.update(SETTINGS)
    placement, leave = start.placement, start.leave
    messages, orders = _channel(), _channel() if leave else None
    channels = {"messages": messages, "orders": orders}
    trainer = _trainer(start, channels)
    outcome: list[BaseException | None] = []
    group = _Group(start.on_group)
    thread = threading.Thread(target=_fit, args=(trainer, outcome), daemon=True)
    thread.start()
    failure: Failure | None = None
    try:
        order = _Order(orders, leave, group)
        for message in _drain(messages, thread, order, start.silence_s):
            if isinstance(message, Grouped):
                group.take(message)
            elif isinstance(message, Failure):
                failure = message
                thread.join(timeout=END_TIMEOUT_S)  # Ray may know better what came first
                break
            else:
                yield from message
    finally:
        _end(thread, group.ids)
        for channel in (messages, orders):
            if channel is not None:
                channel.shutdown(force=True)
    if failure or (outcome and outcome[0] is not None):
        raise causes.of_end(failure, outcome[0] if outcome else None, placement, group.nodes)
    if order.taken_away:
        words = f"{len(order.taken_away)} nodes of {placement.name} are taken away"
        raise GroupError(Failed(Cause.PREEMPTION, words, order.taken_away))


def _channel() -> ray.util.queue.Queue:
    """A queue on this process's own node, which workers may lose but this process may not."""
    here = {labels.NODE_ID: ray.get_runtime_context().get_node_id()}
    return ray.util.queue.Queue(actor_options={"num_cpus": 0, "label_selector": here})


_NO_RETRIES = ray.train.FailureConfig(
    max_failures=0, max_preemption_failures=0, controller_failure_limit=0
)
"""What is done about a failure is ours to decide."""


class _Trainer(ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """Without Ray Data, whose manager is one process more for each group that nothing here asks."""

    def _create_default_callbacks(self) -> list[Any]:
        every = super()._create_default_callbacks()
        return [each for each in every if not isinstance(each, DatasetsCallback)]


def _trainer(start: Start, channels: dict[str, Any]) -> ray.train.torch.TorchTrainer:
    placement = start.placement
    resources = worker_resources(placement)
    return _Trainer(
        run_worker,
        train_loop_config={
            "work": start.work,
            "payload": start.payload,
            "placement": placement,
            **channels,
        },
        scaling_config=ray.train.ScalingConfig(
            num_workers=placement.workers,
            use_gpu="GPU" in resources,
            resources_per_worker=resources,
            label_selector=selector(placement),
        ),
        torch_config=ray.train.torch.TorchConfig(
            backend="nccl" if placement.device == "cuda" else "gloo",
            timeout_s=COLLECTIVE_TIMEOUT_S,
        ),
        run_config=ray.train.RunConfig(
            name=f"{start.name}-{time.time_ns():x}",  # Ray's index of a reused name can be torn
            storage_path=str(start.storage / "ray"),
            failure_config=_NO_RETRIES,
        ),
    )


def _fit(trainer: ray.train.torch.TorchTrainer, outcome: list[BaseException | None]) -> None:
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
        outcome.append(error)


@dataclass(slots=True)
class _Order:
    """The order to leave, given once: after a signal, or when a node is about to be taken away."""

    orders: ray.util.queue.Queue | None
    leave: threading.Event | None
    group: _Group
    given: float | None = None
    """When."""
    looked: float = 0.0
    taken_away: frozenset[str] = frozenset()
    """Nodes of the group that are."""

    def give(self) -> None:
        """Pass it on when it is due."""
        if self.orders is None or self.given is not None:
            return
        now = time.monotonic()
        if now - self.looked >= NOTICE_POLL_S:
            self.looked = now
            self.taken_away = causes.leaving_nodes() & set(self.group.nodes.values())
        if self.taken_away or (self.leave and self.leave.is_set()):
            self.given = now
            self.orders.put("leave")

    @property
    def is_late(self) -> bool:
        """Whether the group had its time to leave."""
        return self.given is not None and time.monotonic() - self.given > GRACE_S


def _drain(
    messages: ray.util.queue.Queue, thread: threading.Thread, order: _Order, silence_s: float
) -> Iterator[Message]:
    heard = time.monotonic()
    while not order.is_late:
        order.give()
        is_over = not thread.is_alive()
        try:
            yield messages.get(timeout=0.01 if is_over else POLL_S)
            heard = time.monotonic()
        except queues.Empty:
            if is_over:
                return
            if order.group.nodes and time.monotonic() - heard > silence_s:
                words = f"the workers reported nothing for {silence_s:.0f} s (train.hang_after)"
                nodes = frozenset(order.group.nodes.values())
                raise GroupError(Failed(Cause.HANG, words, nodes)) from None
        except ray.exceptions.RayError as error:  # the queue's process, or its node, is gone
            lost = Failed(Cause.LOST_NODE, f"the group's messages were lost: {first_line(error)}")
            raise GroupError(lost) from None


def _end(thread: threading.Thread, groups: Iterable[str]) -> None:
    """Leave no thread behind that waits on Ray: it would crash this process when Ray shuts down."""
    if thread.is_alive():
        for placement_group in groups:
            release(placement_group)  # its workers die, and fit() returns
        thread.join(timeout=END_TIMEOUT_S)
