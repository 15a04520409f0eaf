"""`winnow plan`: what a run would try, and what it would not, without running anything."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cluster import local
from cluster.inventory import Inventory, read_inventory
from cluster.prices import read_book
from jobs.spec import JobSpec
from jobs.training.data.longest import longest_row
from jobs.training.model.counting import shape_of
from orchestrator import preflight
from orchestrator.cli.options import (
    Address,
    AsJson,
    InventoryFile,
    JobFile,
    Settings,
    load_job,
    out,
    print_json,
    table,
)
from orchestrator.decisions.plan import Candidate, Plan, make_plan


def plan(
    job: JobFile,
    settings: Settings = None,
    inventory: InventoryFile = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show every candidate with its memory verdict, and every one skipped with the reason."""
    spec = load_job(job, settings)
    found, nodes = planned(spec, inventory, address)
    if as_json:
        print_json(found)
    else:
        show(found, nodes)


def planned(spec: JobSpec, inventory: Path | None, address: str | None) -> tuple[Plan, Inventory]:
    """What a run would try on the nodes of a file, else of a running cluster; and those nodes.

    On a running cluster, which the job may be run on next, it is compared with what it needs from
    elsewhere too. Raises JobFileError with what it cannot have, DeployError where its route is
    another model's.
    """
    moves: list[str] = []
    if inventory is None:
        preflight.check(spec)
    nodes = read_inventory(inventory) if inventory else live_inventory(address, spec, moves.append)
    shape, longest = shape_of(spec.model.base, spec.task), longest_row(spec)
    found = make_plan(spec, nodes, shape, longest, read_book())
    return replace(found, remarks=(*found.remarks, *preflight.remarks(spec), *moves)), nodes


def known_inventory(path: Path | None) -> Inventory | None:
    """Nodes from a file, else of the local cluster when it is up, else None."""
    if path:
        return read_inventory(path)
    return live_inventory(None) if local.running() else None


def live_inventory(
    address: str | None,
    spec: JobSpec | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Inventory:
    """Nodes of a running cluster, on which the route of a job is looked up too.

    Raises ClusterError when there is none, DeployError where the route is another model's.
    """
    from cluster import session

    with session.connect(address=address, start=False) as cluster:
        from cluster import discovery

        if spec and spec.serve:
            from serve.deploy import deployment  # a second that other jobs need not pay

            deployment.log_moved_routes(spec.name, spec.serve, cluster.serve_port, tell)
        return discovery.discover()


def show(plan: Plan, nodes: Inventory) -> None:
    """Print a plan for people."""
    columns = ("candidate", "accumulation", "USD/h", "memory GiB", "of", "verdict")
    shown = table(*columns, left=("candidate", "verdict"))
    for candidate in plan.candidates:
        shown.add_row(*_cells(candidate))
    console = out()
    console.print(f"cluster: {nodes}", markup=False)
    for remark in plan.remarks:
        console.print(f"note: {remark}", markup=False)
    console.print(shown)
    if plan.skipped:
        console.print(f"\nskipped ({len(plan.skipped)}):", style="bold")
    for skipped in plan.skipped:
        console.print(f"  {skipped.id}: {skipped.reason}", markup=False)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    price, memory = candidate.placement.price_usd_per_hour, candidate.memory
    return (
        candidate.id,
        str(candidate.accumulation),
        "unknown" if price is None else f"{price:.3f}",
        f"{memory.low_gib:.1f} / {memory.expected_gib:.1f} / {memory.high_gib:.1f}"
        if memory
        else "?",
        f"{candidate.placement.memory_gib:.0f}",
        candidate.verdict,
    )
