"""The process behind a local cluster: holds its Ray nodes up until it is told to stop."""

import argparse
import os
import signal
import threading
from pathlib import Path

import ray.cluster_utils

from cluster import labels, nvml
from jobs.spec.quantities import AcceleratorRequest, parse_accelerators

SPARE_CPUS_PER_CORE = 1
"""Ray CPUs are only counters. One spare per core lets an endpoint stay up while a job trains."""


def main() -> None:
    """Start the nodes, write the address for the starter, wait for SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m cluster.keeper", description=__doc__)
    parser.add_argument("--dashboard-port", type=int, required=True)
    parser.add_argument("--address-file", type=Path, required=True)
    parser.add_argument("--simulate", type=parse_accelerators, action="append", default=[])
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    cluster = start_nodes(arguments.dashboard_port, arguments.simulate)
    partial = arguments.address_file.with_suffix(".partial")
    partial.write_text(cluster.address, encoding="utf-8")
    partial.rename(arguments.address_file)
    stop.wait()
    cluster.shutdown()


def start_nodes(
    dashboard_port: int, simulated: list[AcceleratorRequest]
) -> ray.cluster_utils.Cluster:
    """A head on this machine's cores, and one node for each simulated placement."""
    cores = os.cpu_count() or 1
    cluster = ray.cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": cores * (1 + SPARE_CPUS_PER_CORE),
            "num_gpus": 0 if simulated else nvml.count_gpus(),  # Ray counts none by itself here
            "include_dashboard": True,
            "dashboard_port": dashboard_port,
            "labels": {labels.CORES: str(cores)},
        },
    )
    for request in simulated:
        cluster.add_node(
            wait=False,
            num_cpus=2 * request.count,
            num_gpus=request.count,
            labels={labels.SKU: request.name, labels.SIMULATED: "true"},
        )
    cluster.wait_for_nodes()
    return cluster


if __name__ == "__main__":
    main()
