"""The queue of a cluster, as an actor of Ray, and how a run asks it for devices."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.exceptions
import ray.util
from ray._private import state as ray_state

from cluster import labels
from cluster.placement import Placement
from jobs.errors import ClusterError, first_line
from orchestrator.decisions.allocation import BESIDE
from orchestrator.decisions.device_queue import DeviceQueue
from orchestrator.decisions.leases import (
    Capacity,
    Demand,
    Entry,
    Lease,
    Place,
    Resource,
    Slot,
    Taken,
    Ticket,
    World,
)
from orchestrator.stages.devices import ON_HEAD, worker_resources

NAME, NAMESPACE = "queue-3", "winnow"
"""The number rises with each change of the actor's methods or arguments, because an actor that an
older release has started may still run."""
ANSWER_S = 60.0
"""How long the queue may take to answer, also while it starts."""
LEAVE_S = 2.0
"""How long the end of a run waits for its answer."""
JOB_ID_DIGITS = 8
"""Digits at the end of a placement group's id that are the id of its job."""


@ray.remote(num_cpus=0, resources=ON_HEAD, max_restarts=-1, max_task_retries=-1)
class QueueActor:
    """Keeps the queue. Started anew, it hears of each run again when the run asks.

    Devices of runs that do not ask are seen by their placement groups; what owners used is lost.
    """

    def __init__(self) -> None:
        self._queue = DeviceQueue()

    def enter(self, job: str, ticket: Ticket) -> None:
        """Add a run."""
        self._queue.enter(job, ticket)

    def leave(self, job: str) -> None:
        """Remove a run."""
        self._queue.settle(world(), time.time())
        self._queue.leave(job)

    def ask(
        self,
        job: str,
        ticket: Ticket,
        demands: Sequence[Demand],
        waited_s: float,
        *,
        awaits_first: bool,
    ) -> Lease | Place:
        """Lease devices to a run, or say its place."""
        self._queue.enter(job, ticket)
        return self._queue.ask(
            job, demands, world(), time.time(), waited_s, awaits_first=awaits_first
        )

    def has_room(self, job: str, demand: Demand) -> bool:
        """Returns whether devices are free that no waiting run could use."""
        return self._queue.has_room(job, demand, world(), time.time())

    def give_back(self, job: str) -> None:
        """End a run's lease."""
        self._queue.settle(world(), time.time())
        self._queue.give_back(job)

    def entries(self) -> tuple[Entry, ...]:
        """Returns all runs."""
        return self._queue.entries(world(), time.time())


class LeasedDevices:
    """The devices that the queue leases to this process's run."""

    def __init__(self, ticket: Ticket, beside: str = "") -> None:
        """`beside`: a name for devices that the run holds besides those of its own lease."""
        self._ticket, self._actor = ticket, _handle()
        self._job = ray.get_runtime_context().get_job_id() + beside
        self._actor.enter.remote(self._job, ticket)
        self._waits_since: float | None = None

    def take(
        self, options: Sequence[Placement], groups: int = 1, *, awaits_first: bool = False
    ) -> Taken | Place:
        """Lease the devices of the first free placement, as `Devices` says.

        Raises:
            ClusterError: if the queue does not answer.
        """
        demands = tuple(_demand(option, groups) for option in options)
        self._waits_since = self._waits_since or time.monotonic()
        waited_s = time.monotonic() - self._waits_since
        asked = self._actor.ask.remote(
            self._job, self._ticket, demands, waited_s, awaits_first=awaits_first
        )
        answer: Lease | Place = _get(asked)
        if isinstance(answer, Place):
            return answer
        self._waits_since, self._ticket = None, replace(self._ticket, has_begun=True)
        option = options[answer.option]
        leased = replace(option, node_ids=tuple(dict.fromkeys(answer.nodes)))
        if groups == 1:
            leased = replace(leased, worker_nodes=answer.nodes)
        return Taken(option, leased, answer.devices)

    def has_room(self, placement: Placement) -> bool:
        """Returns whether devices are free that no waiting run could use."""
        return bool(_get(self._actor.has_room.remote(self._job, _demand(placement, 1))))

    def give_back(self) -> None:
        """End the lease, or the wait for one."""
        self._waits_since = None
        _get(self._actor.give_back.remote(self._job))

    def beside(self) -> "LeasedDevices":
        """Returns what leases other devices to the same run meanwhile."""
        return LeasedDevices(self._ticket, f"{BESIDE}probes")

    def leave(self) -> None:
        """Leave the queue, which a process that has ended leaves too, a moment later."""
        with contextlib.suppress(ray.exceptions.RayError):  # the cluster may be gone
            ray.wait([self._actor.leave.remote(self._job)], timeout=LEAVE_S)


def _demand(placement: Placement, groups: int) -> Demand:
    kind: Resource = "GPU" if "GPU" in worker_resources(placement) else "CPU"
    workers = placement.workers
    return Demand(placement.name, placement.node_ids, kind, workers, workers * groups)


def _get(asked: Any) -> Any:
    try:
        return ray.get(asked, timeout=ANSWER_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ClusterError(
            f"the queue of the cluster does not answer: {first_line(error)}; see whether the"
            " cluster is up with `winnow status`"
        ) from None


def _handle() -> Any:
    """Returns the actor, which is started if the cluster has none."""
    actor: Any = QueueActor
    return actor.options(
        name=NAME, namespace=NAMESPACE, lifetime="detached", get_if_exists=True
    ).remote()


def entries() -> tuple[Entry, ...]:
    """Returns the runs of a cluster's queue; none if the cluster has no queue yet."""
    try:
        actor = ray.get_actor(NAME, namespace=NAMESPACE)
    except ValueError:
        return ()
    found: tuple[Entry, ...] = _get(actor.entries.remote())
    return found


def world() -> World:
    """Returns the devices of every node and who uses them, and the jobs that live."""
    free, used_by = ray_state.available_resources_per_node(), _used_by()
    slots: dict[Slot, Capacity] = {}
    for node in ray.nodes():
        identity = node["NodeID"]
        if not node["Alive"] or identity not in free:
            continue
        kinds: tuple[Resource, ...] = ("GPU", "CPU")
        for kind in kinds:
            total = node["Resources"].get(kind, 0.0)
            cores = node["Labels"].get(labels.CORES) if kind == "CPU" else None
            slot = identity, kind
            groups = used_by.get(slot, {})
            slots[slot] = Capacity(
                devices=int(cores or total),
                total=total,
                # Ray's count of what is free comes a moment later than a new group
                used=max(total - free[identity].get(kind, 0.0), sum(groups.values())),
                used_by=groups,
            )
    return World(slots, frozenset(job["JobID"] for job in ray_state.jobs() if not job["IsDead"]))


def _used_by() -> dict[Slot, dict[str, float]]:
    """Returns the devices in placement groups, by slot and by the job that made the group."""
    found: dict[Slot, dict[str, float]] = {}
    for group, entry in ray.util.placement_group_table().items():
        job = group[-JOB_ID_DIGITS:]
        for number, node in entry["bundles_to_node_id"].items():
            bundle = entry["bundles"][number]
            # the cores beside a GPU are spare ones of its host
            kind: Resource = "GPU" if "GPU" in bundle else "CPU"
            if node and kind in bundle and entry["state"] != "REMOVED":
                used = found.setdefault((node, kind), {})
                used[job] = used.get(job, 0.0) + bundle[kind]
    return found
