"""Tells Ray where the workers of a placement go, and whether they could start."""

import importlib

import ray
import ray.util

from cluster import labels
from cluster.placement import Placement

RESERVE_TIMEOUT_S = 4.0
"""How long the reservation of free devices may take, also shortly after their release."""
ON_HEAD = {labels.HEAD_RESOURCE: 0.001}
"""Resources that place a process on the head, where it survives the loss of any other node."""


def is_free(placement: Placement) -> bool:
    """Returns whether all workers of a placement could start now."""
    group = ray.util.placement_group(
        [worker_resources(placement)] * placement.workers,
        bundle_label_selector=selectors(placement),
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


def selectors(placement: Placement) -> list[dict[str, str]]:
    """Returns the label selector of each worker."""
    if placement.worker_nodes:
        return [{labels.NODE_ID: node} for node in placement.worker_nodes]
    return [selector(placement)] * placement.workers


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
