"""One Ray Train worker group running a function of `jobs.training`, as a stream of its events."""

import os
import queue as queues
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.train
import ray.train.torch
import ray.util
import ray.util.queue

from cluster import catalogue, labels
from cluster.placement import Placement
from jobs.errors import ClusterError, TrainingError, WinnowError
from jobs.training.events import Event, Stepped
from orchestrator.stages.devices import release, selector, worker_resources

COLLECTIVE_TIMEOUT_S = 300
"""A collective that takes longer has lost a worker."""
START_TIMEOUT_S = 120
"""How long the workers of a placement may wait for their resources."""
REPORT_INTERVAL_S = 0.5
"""Events are sent in bundles, because each message costs about a millisecond."""
POLL_S = 1.0
END_TIMEOUT_S = 20.0
"""How long a group that is left early may take to end."""

Report = Callable[[Event], None]
Work = Callable[[Any, Report], object]
"""A function of a payload and a reporter, run by every worker of a group."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker gave up, in words for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Grouped:
    """The workers are up and hold their devices."""

    placement_group: str
    """Hex id of the Ray placement group."""


Message = list[Event] | Failure | Grouped


def stream(
    work: Work,
    payload: object,
    placement: Placement,
    *,
    name: str,
    storage: Path,
    on_group: Callable[[str], None] | None = None,
) -> Generator[Event, None, None]:
    """Run `work(payload, report)` on every worker of a placement and yield what rank 0 reports.

    `on_group` is told the group's id, for a `release` when this process is stopped from outside.
    Close the iterator when it is left early (`contextlib.closing`): that ends the group.
    Raises TrainingError with the worker's own words, or ClusterError when the group does not start.
    """
    environment = {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(START_TIMEOUT_S),
        "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": str(COLLECTIVE_TIMEOUT_S),
        "RAY_TRAIN_METRICS_ENABLED": "0",
    }
    os.environ.update(environment)  # Ray Train reads its settings from the driver's environment
    messages = ray.util.queue.Queue(actor_options={"num_cpus": 0})
    trainer = _trainer(work, payload, placement, messages, name=name, storage=storage)
    outcome: list[BaseException | None] = []
    groups: list[str] = []

    def grouped(placement_group: str) -> None:
        groups.append(placement_group)
        if on_group:
            on_group(placement_group)

    thread = threading.Thread(target=_fit, args=(trainer, outcome), daemon=True)
    thread.start()
    try:
        yield from _drain(messages, thread, grouped)
    finally:
        _end(thread, groups)
        messages.shutdown(force=True)
    if outcome and outcome[0] is not None:
        raise ClusterError(_cause(outcome[0], placement)) from None


def _trainer(
    work: Work,
    payload: object,
    placement: Placement,
    messages: ray.util.queue.Queue,
    *,
    name: str,
    storage: Path,
) -> ray.train.torch.TorchTrainer:
    resources = worker_resources(placement)
    return ray.train.torch.TorchTrainer(
        _run_worker,
        train_loop_config={
            "work": work,
            "payload": payload,
            "messages": messages,
            "placement": placement,
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
            name=f"{name}-{time.time_ns():x}",  # Ray's index of a reused name can be torn
            storage_path=str(storage / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )


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


def _run_worker(config: dict[str, Any]) -> None:
    with _Sender(config["messages"]) as sender:
        check_node(config["placement"])
        if ray.train.get_context().get_world_rank() == 0:
            sender.announce(ray.util.get_current_placement_group().id.hex())
        config["work"](config["payload"], sender.report)


class _Sender:
    """Sends a worker's events in bundles, and its failure when it has one."""

    def __init__(self, messages: ray.util.queue.Queue) -> None:
        self._messages = messages
        self._pending: list[Event] = []
        self._sent = 0.0

    def report(self, event: Event) -> None:
        """Take an event; frequent ones are held back for a moment."""
        self._pending.append(event)
        is_due = time.monotonic() - self._sent >= REPORT_INTERVAL_S
        if is_due or not isinstance(event, Stepped):
            self._flush()

    def announce(self, placement_group: str) -> None:
        """Say which devices this group holds."""
        self._messages.put(Grouped(placement_group))

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._flush()
        if error is not None:
            words = (
                str(error) if isinstance(error, WinnowError) else f"{type(error).__name__}: {error}"
            )
            self._messages.put(Failure(words))

    def _flush(self) -> None:
        if self._pending:
            self._messages.put(self._pending)
        self._pending, self._sent = [], time.monotonic()


def _fit(trainer: ray.train.torch.TorchTrainer, outcome: list[BaseException | None]) -> None:
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
        outcome.append(error)


def _drain(
    messages: ray.util.queue.Queue,
    thread: threading.Thread,
    on_group: Callable[[str], None],
) -> Iterator[Event]:
    while True:
        is_over = not thread.is_alive()
        try:
            message: Message = messages.get(timeout=0.01 if is_over else POLL_S)
        except queues.Empty:
            if is_over:
                return
            continue
        if isinstance(message, Failure):
            thread.join(timeout=START_TIMEOUT_S)
            raise TrainingError(message.message)
        if isinstance(message, Grouped):
            on_group(message.placement_group)
        else:
            yield from message


def _end(thread: threading.Thread, groups: Sequence[str]) -> None:
    """Leave no thread behind that waits on Ray: it would crash this process when Ray shuts down."""
    if thread.is_alive():
        for placement_group in groups:
            release(placement_group)  # its workers die, and fit() returns
        thread.join(timeout=END_TIMEOUT_S)


def _cause(error: BaseException, placement: Placement) -> str:
    text = str(error)
    if "timed out" in text.lower() or "timeout" in type(error).__name__.lower():
        return (
            f"the workers of {placement.name} did not get their devices within {START_TIMEOUT_S} s;"
            " another job or endpoint holds them (`winnow status`)"
        )
    failures = getattr(error, "worker_failures", None) or {}
    first = next(iter(failures.values()), error)
    words = str(first).strip().splitlines()
    return f"training on {placement.name} failed: {words[-1] if words else type(first).__name__}"
