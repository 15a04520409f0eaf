"""What a failure of a worker or of its group was, told from the exceptions of torch and Ray."""

import errno
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from cluster.placement import Placement
from jobs.errors import ClusterError, StorageError, TrainingError, WinnowError, first_line
from jobs.training.memory import is_out_of_memory
from orchestrator.decisions.recovery import Cause, Failed

LOST_KINDS = ("WorkerHealthCheckFailedError", "WorkerGroupStartupFailedError")
"""Exceptions of Ray Train, which does not export them."""
BUSY_KIND = "WorkerGroupStartupTimeoutError"
"""What it raises when it cannot reserve the devices of a group in time; not exported either."""
NOTICE_TIMEOUT_S = 5.0
"""How long the question which nodes leave may take."""
LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "socket timeout",
)
"""What torch says in a worker whose neighbour is gone."""
STUCK = ("timed out waiting", "timeout(ms)", "watchdog", "collective operation timeout")
"""What it says when a collective does not end."""
BROKEN = ("cuda error", "uncorrectable", "ecc error", "gpu is lost", "xid")
"""What it says of a device that does not work."""


def of_worker(error: Exception) -> Cause:
    """Of an exception in a worker."""
    if isinstance(error, GroupError):
        return error.failed.cause
    if isinstance(error, StorageError):
        return Cause.DISK_FULL if error.is_full else Cause.STORAGE
    if isinstance(error, WinnowError):
        return Cause.INPUT
    if is_out_of_memory(error):
        return Cause.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Cause.DISK_FULL
    text = f"{type(error).__name__}: {error}".lower()
    for cause, signs in (
        (Cause.LOST_WORKER, LOST_PEER),
        (Cause.HANG, STUCK),
        (Cause.DEVICE, BROKEN),
    ):
        if any(sign in text for sign in signs):
            return cause
    return Cause.UNKNOWN


def of_group(error: BaseException) -> Cause:
    """Of an exception that Ray raises for a worker or for the whole group."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return Cause.OUT_OF_MEMORY
    if isinstance(error, ray.exceptions.NodeDiedError):
        return Cause.LOST_NODE
    kind = type(error).__name__
    if kind in ("WorkerHealthCheckTimeoutError", "NCCLHangError"):
        return Cause.HANG
    if kind == "PreemptionError":
        return Cause.PREEMPTION
    lost = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError)
    if isinstance(error, lost) or kind in LOST_KINDS:
        return Cause.LOST_WORKER
    return Cause.UNKNOWN


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker gave up."""

    message: str
    """In words for the user."""
    cause: Cause
    rank: int


class GroupError(TrainingError):
    """A group that ended early, with what is known of why."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class BusyError(ClusterError):
    """A group that did not start, because its devices were not free in time."""


def of_end(
    failure: Failure | None,
    outcome: BaseException | None,
    placement: Placement,
    nodes: Mapping[int, str],
) -> GroupError | ClusterError:
    """What to raise for what a worker said and what Ray says; `nodes` of the workers by rank."""
    outcome = getattr(outcome, "controller_failure", outcome)  # what it wraps
    name, failures = placement.name, getattr(outcome, "worker_failures", None) or {}
    lost = {rank: of_group(error) for rank, error in failures.items()}
    gone = {rank: cause for rank, cause in lost.items() if cause is not Cause.UNKNOWN}
    if gone:
        rank, cause = next(iter(gone.items()))
        there = frozenset(nodes[rank] for rank in gone if rank in nodes)
        if cause is Cause.LOST_WORKER and not is_alive(there):
            cause = Cause.LOST_NODE
        words = first_line(failures[rank])
        return GroupError(Failed(cause, f"training on {name} failed: {cause} ({words})", there))
    if failure:
        at = nodes.get(failure.rank)
        # who lost its neighbour is not who failed
        is_its_own = failure.cause is not Cause.LOST_WORKER
        there = frozenset({at} if at and is_its_own else ())
        return GroupError(Failed(failure.cause, failure.message, there))
    assert outcome is not None
    kind, text = of_group(outcome), first_line(next(iter(failures.values()), outcome))
    text = text if kind is Cause.UNKNOWN else f"{kind} ({text})"
    if type(outcome).__name__ == BUSY_KIND:
        return BusyError(
            f"the workers of {name} did not get their devices in time; another job or endpoint"
            " holds them (`winnow status`)"
        )
    return GroupError(Failed(kind, f"training on {name} failed: {text}"))


def leaving_nodes() -> frozenset[str]:
    """Ids of the nodes that are about to be taken away, as a cloud or an autoscaler announced."""
    try:
        client = _client(ray.get_runtime_context().gcs_address)
        return frozenset(client.get_draining_nodes(timeout=NOTICE_TIMEOUT_S))
    except ray.exceptions.RayError:
        return frozenset()  # a head that does not answer is noticed elsewhere


@functools.cache
def _client(address: str) -> Any:
    return ray._raylet.GcsClient(address=address)


def is_alive(nodes: Iterable[str]) -> bool:
    """Whether Ray knows all these nodes to be up."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return alive.issuperset(nodes)
