"""`winnow doctor`: finds faults of this machine, or of every node of a cluster."""

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from cluster import doctor as doctors
from cluster import exposure, facts, local, session
from cluster.facts import NodeFacts
from orchestrator.cli.options import Address, AsJson, out, print_json, table

EXIT_FINDINGS = 1
"""Exit code if there is at least one error."""

Value = TypeVar("Value")


def doctor(
    address: Address = None,
    security: Annotated[
        bool, typer.Option("--security", help="Check ports, tokens and vulnerabilities instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check driver, GPUs, disk, shared memory, network and clocks, and print remedies."""
    if security:
        _check_security(address, as_json=as_json)
        return
    nodes, received_s = _gather(
        address,
        lambda: ((facts.gather(),), (time.time(),)),
        lambda discovery: discovery.facts_of_nodes(),
    )
    findings = doctors.examine(nodes, received_s)
    is_bad = any(finding.severity == "error" for finding in findings)
    if as_json:
        print_json({"nodes": nodes, "findings": findings})
    else:
        show(nodes, findings)
    if is_bad:
        sys.exit(EXIT_FINDINGS)


def show(nodes: tuple[NodeFacts, ...], findings: tuple[doctors.Finding, ...]) -> None:
    """Print the nodes and their findings."""
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
            console.print("  no findings")


def _check_security(address: str | None, *, as_json: bool) -> None:
    nodes = _gather(address, lambda: (exposure.gather(),), lambda discovery: discovery.exposures())
    findings = [finding for node in nodes for finding in exposure.judge(node)]
    findings += exposure.advisories()
    if as_json:
        print_json({"nodes": nodes, "findings": tuple(findings)})
    else:
        console = out()
        for node in nodes:
            console.print(f"{node.node}: {len(node.listening)} ports", style="bold", markup=False)
            shown = table("port", "address", "what", "for", left=("address", "what", "for"))
            for each in node.listening:
                shown.add_row(str(each.port), each.address, each.role.name, each.role.audience)
            console.print(shown)
        for finding in findings:
            console.print(f"{finding.severity}: {finding.message}", markup=False)
        if not findings:
            console.print("no findings")
    if any(finding.severity == "error" for finding in findings):
        sys.exit(EXIT_FINDINGS)


def _gather(
    address: str | None,
    on_machine: Callable[[], Value],
    on_cluster: Callable[[Any], Value],
) -> Value:
    """Call `on_cluster` with `cluster.discovery`; if no cluster is up, call `on_machine`."""
    if address is None and local.running() is None:
        return on_machine()
    with session.connect(address=address, start=False):
        from cluster import discovery

        return on_cluster(discovery)
