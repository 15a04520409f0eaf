"""Classifies failures of workers and worker groups by the exceptions of torch and Ray."""

import errno
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from cluster.placement import Placement
from jobs.errors import ClusterError, StorageError, TrainingError, WinnowError, first_line
from jobs.training.out_of_memory import is_out_of_memory
from orchestrator.decisions.recovery import Cause, Failed

LOST_KINDS = ("WorkerHealthCheckFailedError", "WorkerGroupStartupFailedError")
"""Names of Ray Train's exceptions for a lost worker; Ray does not export the classes."""
BUSY_KIND = "WorkerGroupStartupTimeoutError"
"""Name of Ray Train's exception for devices that it could not reserve in time."""
NOTICE_TIMEOUT_S = 5.0
"""How long the head may take to list the draining nodes."""
LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "socket timeout",
)
"""Texts in torch's errors when another worker of the group is gone."""
STUCK = ("timed out waiting", "timeout(ms)", "watchdog", "collective operation timeout")
"""Texts in torch's errors when a collective operation does not end."""
BROKEN = ("cuda error", "uncorrectable", "ecc error", "gpu is lost", "xid")
"""Texts in torch's errors when a device is broken."""


def classify_worker_error(error: Exception) -> Cause:
    """Returns the cause of an exception that was raised in a worker."""
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


def classify_ray_error(error: BaseException) -> Cause:
    """Returns the cause of an exception that Ray raises for a worker or for the whole group."""
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
    """The failure that a worker reports before it ends."""

    message: str
    """Sentence for the user."""
    cause: Cause
    rank: int


class GroupError(TrainingError):
    """A worker group ended early."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class BusyError(ClusterError):
    """A worker group did not start, because its devices were not free in time."""


def group_error(
    failure: Failure | None,
    outcome: BaseException | None,
    placement: Placement,
    nodes: Mapping[int, str],
) -> GroupError | ClusterError:
    """Returns the error to raise for a group that ended early.

    `failure`: what a worker reported; `outcome`: the exception of Ray Train; `nodes`: Ray node ids
    by rank.
    """
    outcome = getattr(outcome, "controller_failure", outcome)  # Ray may wrap the exception
    name, failures = placement.name, getattr(outcome, "worker_failures", None) or {}
    causes = {rank: classify_ray_error(error) for rank, error in failures.items()}
    gone = {rank: cause for rank, cause in causes.items() if cause is not Cause.UNKNOWN}
    if gone:
        rank, cause = next(iter(gone.items()))
        blamed = frozenset(nodes[rank] for rank in gone if rank in nodes)
        if cause is Cause.LOST_WORKER and not are_alive(blamed):
            cause = Cause.LOST_NODE
        reason = first_line(failures[rank])
        return GroupError(Failed(cause, f"training on {name} failed: {cause} ({reason})", blamed))
    if failure:
        node = nodes.get(failure.rank)
        # a worker that lost its connection to another one is not the worker that failed
        is_own_fault = failure.cause is not Cause.LOST_WORKER
        blamed = frozenset({node} if node and is_own_fault else ())
        return GroupError(Failed(failure.cause, failure.message, blamed))
    assert outcome is not None
    kind, reason = classify_ray_error(outcome), first_line(next(iter(failures.values()), outcome))
    reason = reason if kind is Cause.UNKNOWN else f"{kind} ({reason})"
    if type(outcome).__name__ == BUSY_KIND:
        return BusyError(
            f"the workers of {name} did not get their devices in time; another job or endpoint"
            " holds them (`winnow queue`)"
        )
    return GroupError(Failed(kind, f"training on {name} failed: {reason}"))


def draining_nodes() -> frozenset[str]:
    """Returns the ids of the nodes that a cloud or an autoscaler announced to remove."""
    try:
        client = _client(ray.get_runtime_context().gcs_address)
        return frozenset(client.get_draining_nodes(timeout=NOTICE_TIMEOUT_S))
    except ray.exceptions.RayError:
        return frozenset()  # other calls report a head that does not answer


@functools.cache
def _client(address: str) -> Any:
    return ray._raylet.GcsClient(address=address)


def are_alive(nodes: Iterable[str]) -> bool:
    """Returns whether Ray reports all these nodes as up."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return alive.issuperset(nodes)
