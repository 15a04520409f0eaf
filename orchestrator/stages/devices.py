"""Whether a placement's devices are free, found out by reserving them for a moment."""

import importlib
import time
from collections.abc import Callable, Sequence

import ray.util

from cluster import labels
from cluster.placement import Placement

GLANCE_S = 4.0
"""How long a reservation may take where devices are free, or were given back just now."""
TELL_AFTER_S = 10.0
"""Shorter waits are not worth telling."""


def first_free(
    placements: Sequence[Placement], timeout_s: float, on_wait: Callable[[], None]
) -> Placement | None:
    """The first placement, in order, that all devices can be had for at once.

    Waits until one can; None when all stay busy for `timeout_s`. `on_wait` is told once.
    """
    began, told = time.monotonic(), False
    while True:
        for placement in placements:
            if is_free(placement):
                return placement
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            return None
        if waited_s >= TELL_AFTER_S and not told:
            on_wait()
            told = True


def is_free(placement: Placement) -> bool:
    """Whether all workers of a placement could start now."""
    group = ray.util.placement_group(
        [worker_resources(placement)] * placement.workers,
        bundle_label_selector=[selector(placement)] * placement.workers,
    )
    try:
        return bool(group.wait(GLANCE_S))
    finally:
        ray.util.remove_placement_group(group)


def worker_resources(placement: Placement) -> dict[str, float]:
    """What Ray reserves for one worker."""
    has_gpus = placement.device == "cuda" or placement.simulated
    return {"CPU": 1, "GPU": 1} if has_gpus else {"CPU": 1}


def selector(placement: Placement) -> dict[str, str]:
    """Label selector for the placement's nodes; node ids are there on unlabelled clusters too."""
    return {labels.NODE_ID: f"in({','.join(placement.node_ids)})"}


def release(placement_group: str) -> None:
    """Free the devices of a group whose driver was stopped from outside; nothing if it is gone.

    Tune ends a trial by killing its driver, and a worker group may outlive that and hold its
    devices for ever.
    """
    found = ray.util.placement_group_table().get(placement_group)
    if found is not None and found["state"] != "REMOVED":
        identity = ray.PlacementGroupID(bytes.fromhex(placement_group))
        # a function of the same name hides this module
        module = importlib.import_module("ray.util.placement_group")
        ray.util.remove_placement_group(module.PlacementGroup(identity))
