"""Runs a function of `jobs.training` in a Ray Train worker group and streams its events."""

import contextlib
import math
import os
import queue as queues
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
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
from orchestrator.stages import failures
from orchestrator.stages.devices import is_free, release, selectors, worker_resources
from orchestrator.stages.failures import Failure, GroupError
from orchestrator.stages.leave_order import LeaveOrder, Members
from orchestrator.stages.secrets import Work
from orchestrator.stages.worker import Message, WorkerStarted, run_worker

COLLECTIVE_TIMEOUT_S = 300
"""A collective operation that takes longer fails: a worker is lost or hangs."""
RESERVE_TIMEOUT_S = 20
"""How long Ray Train may take to reserve the devices of a group; then a new group is started."""
BUSY_TIMEOUT_S = 120.0
"""How long busy devices are waited for by default."""
POLL_S = 1.0
END_TIMEOUT_S = 20.0
"""How long a group may take to end after its devices were released."""
END_POLL_S = 0.1
"""How often it is looked whether a group has ended."""
SILENCE_S = 60
"""A worker that does not answer Ray for this long counts as hung."""

SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(SILENCE_S),
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(RESERVE_TIMEOUT_S),
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": str(COLLECTIVE_TIMEOUT_S),
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
"""Ray Train's settings, which it reads from the driver's environment."""


@dataclass(frozen=True, slots=True)
class Start:
    """The arguments of a worker group, which runs `work(payload, report)` in every worker."""

    work: Work
    payload: object
    placement: Placement
    name: str
    storage: Path
    on_group: Callable[[str], None] | None = None
    """Gets the placement group's id, with which `release` frees it if this process is killed."""
    leave: threading.Event | None = None
    """Once it is set, the workers get the order to leave, and have GRACE_S to end."""
    orders: ray.util.queue.Queue | None = None
    """Where the order to leave goes if the work reads it there itself."""
    is_over: Callable[[], bool] = bool
    """Returns whether the group is to be ended at once."""

    silence_s: float = math.inf
    """Longest time without a report before the workers count as hung."""

    def own_orders(self) -> ray.util.queue.Queue | None:
        """Returns a new queue for the order to leave, where the workers need one."""
        return queue_here() if self.leave and self.orders is None else None


@dataclass(slots=True)
class DeviceWait:
    """How long a group may wait for busy devices, and how long it has waited."""

    limit_s: float = BUSY_TIMEOUT_S
    log: Callable[[str], None] = lambda _: None
    """Gets one sentence when the wait begins."""
    waited_s: float = 0.0


def stream(start: Start, device_wait: DeviceWait | None = None) -> Generator[Event, None, None]:
    """Start a group and yield the events that rank 0 reports; the rest is as in `batches`."""
    with contextlib.closing(batches(start, device_wait)) as every:
        for batch in every:
            yield from batch


def batches(
    start: Start, device_wait: DeviceWait | None = None
) -> Generator[list[Event], None, None]:
    """Start a group and yield the events that rank 0 reports, as many as it sends at once.

    If another job takes the devices before the group has started, it is started again when they are
    free. Use `contextlib.closing`: closing the iterator ends the group.

    Raises:
        GroupError: if a worker fails, is lost or hangs.
        BusyError: if the devices stay busy for longer than `device_wait` allows.
    """
    device_wait = device_wait or DeviceWait()
    while not start.is_over():
        began = time.monotonic()
        try:
            yield from _batches(start)
            return
        except failures.BusyError as busy:
            _wait(start, device_wait, began, busy)
        device_wait.waited_s += time.monotonic() - began


def _wait(start: Start, device_wait: DeviceWait, began: float, busy: failures.BusyError) -> None:
    """Wait until the devices are free.

    Raises:
        BusyError: `busy`, at the end of the allowed time, once `leave` is set, or once it is over.
        GroupError: if a node of the placement is lost.
    """
    if not device_wait.waited_s:
        name = start.placement.name
        device_wait.log(f"another job or endpoint took the devices of {name}; waiting for them")
    while not is_free(start.placement):
        if not failures.are_alive(start.placement.node_ids):
            text = f"a node of {start.placement.name} was lost before the workers had started"
            raise GroupError(Failed(Cause.LOST_NODE, text)) from None
        must_leave = start.is_over() or (start.leave is not None and start.leave.is_set())
        left_s = device_wait.limit_s - device_wait.waited_s - (time.monotonic() - began)
        if must_leave or left_s <= 0:
            raise busy


def _batches(start: Start) -> Generator[list[Event], None, None]:
    os.environ.update(SETTINGS)
    placement, leave = start.placement, start.leave
    messages, orders = queue_here(), start.own_orders()
    trainer = _trainer(start, {"messages": messages, "orders": orders})
    outcome: list[BaseException | None] = []
    members = Members(start.on_group)
    thread = threading.Thread(target=_fit, args=(trainer, outcome), daemon=True)
    thread.start()
    failure: Failure | None = None
    try:
        order = LeaveOrder(orders if start.orders is None else start.orders, leave, members)
        for message in _drain(messages, thread, order, start):
            if isinstance(message, WorkerStarted):
                members.add(message)
            elif isinstance(message, Failure):
                failure = message
                thread.join(timeout=END_TIMEOUT_S)  # Ray may report the first cause
                break
            else:
                yield message
    finally:
        _end(thread, members, messages)
        for channel in (messages, orders):
            if channel is not None:
                channel.shutdown(force=True)
    if failure or (outcome and outcome[0] is not None):
        raise failures.group_error(
            failure, outcome[0] if outcome else None, placement, members.nodes
        )
    if order.draining:
        text = f"{len(order.draining)} nodes of {placement.name} are being removed"
        raise GroupError(Failed(Cause.PREEMPTION, text, order.draining))


def queue_here() -> ray.util.queue.Queue:
    """Create a queue on this process's node, so that it survives the loss of any other node."""
    here = {labels.NODE_ID: ray.get_runtime_context().get_node_id()}
    return ray.util.queue.Queue(actor_options={"num_cpus": 0, "label_selector": here})


_NO_RETRIES = ray.train.FailureConfig(
    max_failures=0, max_preemption_failures=0, controller_failure_limit=0
)
"""Turns Ray's retries off: `decisions.recovery` decides about failures."""


class _Trainer(ray.train.torch.TorchTrainer):  # type: ignore[misc]
    """A trainer without Ray Data, whose manager would be one more unused process for each group."""

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
            label_selector=selectors(placement),
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
    except Exception as error:  # noqa: BLE001 - the caller's thread raises it
        outcome.append(error)


def _drain(
    messages: ray.util.queue.Queue, thread: threading.Thread, order: LeaveOrder, start: Start
) -> Iterator[Message]:
    """Yield messages until the group ends; raises GroupError if it is silent or lost."""
    received_s, silence_s = time.monotonic(), start.silence_s
    while not order.is_late and not start.is_over():
        order.send_if_due()
        is_over = not thread.is_alive()
        try:
            yield messages.get(timeout=0.01 if is_over else POLL_S)
            received_s = time.monotonic()
        except queues.Empty:
            if is_over:
                return
            if order.members.nodes and time.monotonic() - received_s > silence_s:
                text = f"the workers reported nothing for {silence_s:.0f} s (train.hang_after)"
                nodes = frozenset(order.members.nodes.values())
                raise GroupError(Failed(Cause.HANG, text, nodes)) from None
        except ray.exceptions.RayError as error:  # the queue's process, or its node, is gone
            lost = Failed(Cause.LOST_NODE, f"the group's messages were lost: {first_line(error)}")
            raise GroupError(lost) from None


def _end(thread: threading.Thread, members: Members, messages: ray.util.queue.Queue) -> None:
    """End the group and its thread: a thread that waits on Ray crashes this process at shutdown.

    A group that has only begun to start is known by its first message.
    """
    deadline, released = time.monotonic() + END_TIMEOUT_S, set[str]()
    while thread.is_alive() and time.monotonic() < deadline:
        for placement_group in members.ids - released:
            release(placement_group)  # its workers die, and fit() returns
            released.add(placement_group)
        with contextlib.suppress(queues.Empty, ray.exceptions.RayError):
            message = None if members.ids else messages.get(timeout=POLL_S)
            if isinstance(message, WorkerStarted):
                members.add(message)
        thread.join(timeout=END_POLL_S)
