"""`winnow plan`: what a run would try, and what it would not, without running anything."""

from cluster.inventory import Inventory, read_inventory
from orchestrator.cli.options import (
    Address,
    AsJson,
    InventoryFile,
    JobFile,
    Settings,
    out,
    print_json,
    table,
)
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.plan import Plan
from orchestrator.loading import load_job
from orchestrator.planning import planned


def plan(
    job: JobFile,
    settings: Settings = None,
    inventory: InventoryFile = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show every candidate with its memory verdict, and every one skipped with the reason."""
    spec = load_job(job, settings)
    found, nodes = planned(spec, read_inventory(inventory) if inventory else None, address)
    if as_json:
        print_json(found)
    else:
        show(found, nodes)


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
