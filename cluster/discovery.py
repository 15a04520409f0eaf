"""Reads the nodes of the live Ray cluster."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import ray
import ray.exceptions

from cluster import catalogue, exposure, facts, labels, nvml
from cluster.exposure import Exposure
from cluster.facts import NodeFacts
from cluster.inventory import Inventory, Node, sort_out
from jobs.errors import ClusterError

DETECT_TIMEOUT_S = 60.0
"""How long a node may take to start a process and query NVML."""

Value = TypeVar("Value")


def discover() -> Inventory:
    """Returns every live node; queries NVML on nodes that have GPUs and no SKU label."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    unlabelled = [node for node in alive if _gpus(node) and labels.SKU not in node["Labels"]]
    detected = dict(zip([n["NodeID"] for n in unlabelled], _detect(unlabelled), strict=True))
    return sort_out(entry for node in alive for entry in _entries(node, detected))


def own_sku() -> str:
    """Returns the SKU of the devices that Ray assigned to this process."""
    if not ray.get_gpu_ids():
        return catalogue.CPU
    marks = ray.get_runtime_context().get_node_labels()
    return _sku(marks, marks.get(labels.SKU) or nvml.detect_sku())


def facts_of_nodes() -> tuple[tuple[NodeFacts, ...], tuple[float, ...]]:
    """Returns the facts of every live machine, and this machine's clock when each arrived.

    Clocks are in seconds since 1970. Raises ClusterError if a node does not answer.
    """
    return _run_on_each(facts.gather)


def exposures() -> tuple[Exposure, ...]:
    """Returns the network exposure of every live machine.

    Raises:
        ClusterError: if a node does not answer.
    """
    return _run_on_each(exposure.gather)[0]


def _run_on_each(gather: Callable[[], Value]) -> tuple[tuple[Value, ...], tuple[float, ...]]:
    """Run `gather` on each machine; skips simulated nodes, which share a machine with others."""
    alive = [n for n in ray.nodes() if n["Alive"] and n["Labels"].get(labels.SIMULATED) != "true"]
    task: Any = ray.remote(num_cpus=0)(gather)
    values, received_s = [], []
    for node in alive:
        on_node = task.options(label_selector={labels.NODE_ID: node["NodeID"]})
        try:
            values.append(ray.get(on_node.remote(), timeout=DETECT_TIMEOUT_S))
        except ray.exceptions.GetTimeoutError:
            raise ClusterError(
                f"node {node['NodeManagerHostname']} did not answer within {DETECT_TIMEOUT_S:g} s"
            ) from None
        # a node reads its clock shortly before its result arrives
        received_s.append(time.time())
    return tuple(values), tuple(received_s)


def _detect(nodes: list[dict[str, Any]]) -> list[str | None]:
    task = ray.remote(num_cpus=0)(nvml.detect_sku)
    pending = [
        task.options(label_selector={labels.NODE_ID: node["NodeID"]}).remote() for node in nodes
    ]
    try:
        return list(ray.get(pending, timeout=DETECT_TIMEOUT_S))
    except ray.exceptions.GetTimeoutError:
        return [None] * len(nodes)


def _entries(node: dict[str, Any], detected: dict[str, str | None]) -> Iterator[Node]:
    """Yields a node's accelerators, and its cores, which are devices of the SKU `cpu`."""
    marks, resources, gpus = node["Labels"], node["Resources"], _gpus(node)
    memory_gib = resources.get("memory", 0) / 2**30 or None
    simulated = marks.get(labels.SIMULATED) == "true"
    spot = marks.get(labels.MARKET) == "spot"
    if gpus:
        sku = _sku(marks, marks.get(labels.SKU) or detected.get(node["NodeID"]))
        labelled = marks.get(labels.SKU) == sku
        yield Node(node["NodeID"], sku, gpus, memory_gib, simulated, spot, labelled)
    cores = int(marks.get(labels.CORES, resources.get("CPU", 0)))
    if cores and not simulated:
        yield Node(node["NodeID"], catalogue.CPU, cores, memory_gib, spot=spot)


def _gpus(node: dict[str, Any]) -> int:
    return int(node["Resources"].get("GPU", 0))


def _sku(marks: Mapping[str, str], named: str | None) -> str:
    """Returns the catalogue's name for the name in a label or from NVML, else for Ray's label."""
    name = named or marks.get(labels.ACCELERATOR_TYPE, "unknown GPU")
    sku = catalogue.known(name)
    return sku.name if sku else name
