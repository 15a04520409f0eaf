"""Counts the free devices of a cluster, and chooses those that meet a demand."""

import collections
import math
from collections.abc import Mapping

from orchestrator.decisions.leases import Capacity, Demand, Lease, Slot, World

BESIDE = "/"
"""Separates a Ray job from the name of what its run holds besides."""


def driver_of(job: str) -> str:
    """Returns the Ray job of a run, or of what a run holds besides."""
    return job.partition(BESIDE)[0]


def leases_by_run(leases: Mapping[str, Lease]) -> dict[str, list[Lease]]:
    """Returns the leases of each run by its Ray job: its own, then what it holds besides."""
    found = collections.defaultdict[str, list[Lease]](list)
    for job in sorted(leases):
        found[driver_of(job)].append(leases[job])
    return dict(found)


def other_holders(wanted: set[Slot], known: set[str], world: World) -> list[str]:
    """Returns who holds wanted devices without a lease; `known` are the jobs with one."""
    up = [world.slots[slot] for slot in wanted & set(world.slots)]
    if not up:
        return ["no node with these devices is up"]
    found = []
    if any(world.jobs & set(each.used_by) - known for each in up):
        found.append("a run that has not asked the queue holds devices")
    if any(for_runs(each, world) < each.devices for each in up):
        found.append("an endpoint or another program holds devices")
    return found


def held_by_runs(slot: Slot, capacity: Capacity, world: World, leases: Mapping[str, Lease]) -> int:
    """Returns the devices that runs hold, by a lease, or by a group without one.

    A queue that was started anew does not know the leases of the runs that train.
    """
    held = collections.defaultdict[str, float](float)
    for job, lease in leases.items():
        held[driver_of(job)] += lease.slots.get(slot, 0)
    for job in world.jobs & set(capacity.used_by):
        held[job] = max(held[job], capacity.used_by[job])
    return sum(math.ceil(count - 1e-6) for count in held.values())


def for_runs(capacity: Capacity, world: World) -> int:
    """Returns the devices that are left to runs by endpoints and other programs."""
    by_runs = sum(count for job, count in capacity.used_by.items() if job in world.jobs)
    by_others = max(0.0, capacity.used - by_runs)
    return min(capacity.devices, math.floor(capacity.total - by_others + 1e-6))


def allocate(
    demand: Demand, free: Mapping[Slot, int], own: Mapping[Slot, int]
) -> dict[Slot, int] | None:
    """Returns devices for a demand: the run's own before others, and on few nodes; or None."""
    slots: list[Slot] = [(node, demand.resource) for node in demand.nodes]
    left = {slot: free.get(slot, 0) for slot in slots if free.get(slot, 0) > 0}
    count = min(demand.most, sum(left.values())) // demand.least * demand.least
    if count == 0:
        return None
    whole = [slot for slot, size in left.items() if size >= count]
    if whole:
        return {min(whole, key=lambda slot: (-own.get(slot, 0), left[slot])): count}
    found: dict[Slot, int] = {}
    for slot in sorted(left, key=lambda slot: (-own.get(slot, 0), -left[slot])):
        if count:
            found[slot] = min(count, left[slot])
            count -= found[slot]
    return found
