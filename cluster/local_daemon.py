"""The process that runs a local cluster until it gets a signal or the head dies."""

import argparse
import os
import signal
import threading
from pathlib import Path
from typing import Any

import ray.cluster_utils

from cluster import catalogue, labels, nvml
from jobs.spec.quantities import AcceleratorRequest, parse_accelerators
from jobs.storage import files

WATCH_S = 1.0
"""How often dead nodes are looked for."""
SPARE_CPUS_PER_CORE = 1
"""Additional Ray CPUs per core, so that an endpoint stays up while a job trains. Ray CPUs are only
counters and reserve no core."""


def main() -> None:
    """Start the nodes, write the address file, restart dead nodes until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m cluster.local_daemon", description=__doc__)
    parser.add_argument("--dashboard-port", type=int, required=True)
    parser.add_argument("--address-file", type=Path, required=True)
    parser.add_argument("--simulate", type=parse_accelerators, action="append", default=[])
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    cluster = start_head(arguments.dashboard_port, has_gpus=not arguments.simulate)
    simulated = {add_node(cluster, request): request for request in arguments.simulate}
    cluster.wait_for_nodes()
    files.write_atomically(arguments.address_file, cluster.address.encode())
    while not stop.wait(WATCH_S) and not is_dead(cluster.head_node):
        for node in [node for node in simulated if is_dead(node)]:
            cluster.remove_node(node, allow_graceful=False)
            request = simulated.pop(node)
            simulated[add_node(cluster, request)] = request
    cluster.shutdown()  # also after the head died, so that the next start is clean


def start_head(dashboard_port: int, *, has_gpus: bool) -> ray.cluster_utils.Cluster:
    """Start a head node with the cores of this machine that this process may use."""
    cores, gpus = usable_cores(), nvml.count_gpus() if has_gpus else 0
    sku = {} if gpus else {labels.SKU: catalogue.CPU}
    return ray.cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cores * (1 + SPARE_CPUS_PER_CORE),
            "num_gpus": gpus,  # ray.cluster_utils does not detect GPUs
            "include_dashboard": True,
            "include_log_monitor": False,  # it forwards worker output to drivers, which is unused
            "no_monitor": True,  # no autoscaler: there are no nodes to add
            "dashboard_port": dashboard_port,
            "labels": {labels.CORES: str(cores), **sku},
        },
    )


def usable_cores() -> int:
    """Returns the number of cores that this process may use, as `taskset` and containers limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinities


def add_node(cluster: ray.cluster_utils.Cluster, request: AcceleratorRequest) -> Any:
    """Start a node with simulated accelerators."""
    return cluster.add_node(
        wait=False,
        num_cpus=2 * request.count,
        num_gpus=request.count,
        labels={labels.SKU: request.name, labels.SIMULATED: "true"},
    )


def is_dead(node: Any) -> bool:
    """Returns whether an essential process of a node has ended."""
    return any(kind in ("gcs_server", "raylet") for kind, _ in node.dead_processes())


if __name__ == "__main__":
    main()
