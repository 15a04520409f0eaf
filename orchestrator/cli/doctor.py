"""`winnow doctor`: what is wrong with this machine, or with every node of a cluster."""

import sys
import time

from cluster import doctor as doctors
from cluster import facts, local, session
from cluster.facts import NodeFacts
from orchestrator.cli.options import Address, AsJson, out, print_json

EXIT_FINDINGS = 1
"""At least one error was found."""


def doctor(address: Address = None, as_json: AsJson = False) -> None:
    """Check driver, GPUs, disk, shared memory, network and clocks; say what to do."""
    nodes, asked_s = _gather(address)
    findings = doctors.examine(nodes, asked_s)
    is_bad = any(finding.severity == "error" for finding in findings)
    if as_json:
        print_json({"nodes": nodes, "findings": findings})
    else:
        show(nodes, findings)
    if is_bad:
        sys.exit(EXIT_FINDINGS)


def show(nodes: tuple[NodeFacts, ...], findings: tuple[doctors.Finding, ...]) -> None:
    """Print nodes and what is wrong with them."""
    console = out()
    for node in nodes:
        gpus = ", ".join(gpu.name for gpu in node.gpus) or "no NVIDIA GPU"
        driver = f", driver {node.driver} (CUDA {node.driver_cuda})" if node.driver else ""
        versions = ", ".join(f"{name} {version}" for name, version in node.versions.items())
        console.print(f"{node.node}: {gpus}{driver}", style="bold", markup=False)
        console.print(f"  {versions}", markup=False)
        console.print(
            f"  disk {node.disk_free_gib:.0f} GiB free, {node.disk_mb_per_s:,.0f} MB/s; /dev/shm"
            f" {node.shm_gib:.1f} GiB; interfaces {', '.join(node.interfaces) or 'none'}",
            markup=False,
        )
        own = [finding for finding in findings if finding.node == node.node]
        for finding in own:
            console.print(f"  {finding.severity}: {finding.message}", markup=False)
        if not own:
            console.print("  nothing to complain about")


def _gather(address: str | None) -> tuple[tuple[NodeFacts, ...], tuple[float, ...]]:
    """Every node of the cluster, or this machine when none is up."""
    if address is None and local.running() is None:
        return (facts.gather(),), (time.time(),)
    with session.connect(address=address, start=False):
        from cluster import discovery

        return discovery.facts_of_nodes()
