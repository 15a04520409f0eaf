"""`winnow ls`: lists the runs of a storage."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from jobs.spec.quantities import format_metric
from jobs.storage.storage import open_storage
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    AsJson,
    StorageOption,
    out,
    print_json,
    print_table,
    table,
)
from orchestrator.records import runs
from orchestrator.records.receipt_text import show_cost
from orchestrator.records.summary import Summary, summarize

PRINTS = {"ls": tuple[Summary, ...]}
"""What each command prints with --json."""
LEFT = ("run", "state", "owner", "model", "winner", "metric")


def ls(
    storage: StorageOption = DEFAULT_STORAGE,
    limit: Annotated[int | None, typer.Option(min=1, help="List at most so many runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a storage with state, owner, winner, metric and cost, newest first."""
    found = tuple(summarize(run) for run in runs.every(open_storage(storage))[:limit])
    if as_json:
        print_json(found, PRINTS["ls"])
        return
    if not found:
        out().print(f"no run is in {storage}; run a job first", markup=False)
        return
    shown = table("run", "state", "age", "owner", "model", "winner", "metric", "cost", left=LEFT)
    now = datetime.now(UTC)
    for each in found:
        shown.add_row(*_cells(each, now))
    print_table(shown)


def show_age(age: timedelta) -> str:
    """Returns an age in its largest whole unit, such as 3 h."""
    minutes = int(age.total_seconds() // 60)
    if minutes < 60:
        return f"{max(0, minutes)} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // (24 * 60)} d"


def _cells(run: Summary, now: datetime) -> tuple[str, ...]:
    metric = "–" if run.value is None else f"{run.metric} {format_metric(run.value)}"
    return (
        run.id,
        run.state,
        show_age(now - run.created) if run.created else "–",
        run.owner or "–",
        run.model,
        run.winner or "–",
        metric,
        "–" if run.cost_usd is None else show_cost(run.cost_usd),
    )
