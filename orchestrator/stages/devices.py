"""Tests whether a placement's devices are free by reserving them briefly."""

import importlib
import time
from collections.abc import Callable, Sequence

import ray.util

from cluster import labels
from cluster.placement import Placement

RESERVE_TIMEOUT_S = 4.0
"""How long the reservation of free devices may take, also shortly after their release."""
LOG_AFTER_S = 10.0
"""Shorter waits are not logged."""
ON_HEAD = {labels.HEAD_RESOURCE: 0.001}
"""Resources that place a process on the head, where it survives the loss of any other node."""


def first_free(
    placements: Sequence[Placement], timeout_s: float, on_wait: Callable[[], None]
) -> Placement | None:
    """Wait for the first placement, in order, whose devices are all free at once.

    Returns None if all stay busy for `timeout_s`. `on_wait` is called once, after LOG_AFTER_S.
    """
    began, is_logged = time.monotonic(), False
    while True:
        for placement in placements:
            if is_free(placement):
                return placement
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            return None
        if waited_s >= LOG_AFTER_S and not is_logged:
            on_wait()
            is_logged = True


def is_free(placement: Placement) -> bool:
    """Returns whether all workers of a placement could start now."""
    group = ray.util.placement_group(
        [worker_resources(placement)] * placement.workers,
        bundle_label_selector=[selector(placement)] * placement.workers,
    )
    try:
        return bool(group.wait(RESERVE_TIMEOUT_S))
    finally:
        ray.util.remove_placement_group(group)


def worker_resources(placement: Placement) -> dict[str, float]:
    """Returns the resources that Ray reserves for one worker."""
    has_gpus = placement.device == "cuda" or placement.simulated
    return {"CPU": 1, "GPU": 1} if has_gpus else {"CPU": 1}


def selector(placement: Placement) -> dict[str, str]:
    """Returns a label selector by node id, which works on clusters without Winnow's labels too."""
    return {labels.NODE_ID: f"in({','.join(placement.node_ids)})"}


def release(placement_group: str) -> None:
    """Remove a placement group by its hex id, if it exists.

    Tune stops a trial by killing its driver; the worker group can outlive the driver and would hold
    its devices for ever.
    """
    entry = ray.util.placement_group_table().get(placement_group)
    if entry is not None and entry["state"] != "REMOVED":
        identity = ray.PlacementGroupID(bytes.fromhex(placement_group))
        # `ray.util.placement_group` is a function of the same name
        module = importlib.import_module("ray.util.placement_group")
        ray.util.remove_placement_group(module.PlacementGroup(identity))
