"""`winnow compare`: shows runs side by side."""

from collections.abc import Iterator
from typing import Annotated

import typer

from jobs.errors import RunError
from jobs.spec.quantities import format_metric
from jobs.storage.storage import open_storage
from orchestrator.cli import completion
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    AsJson,
    StorageOption,
    print_json,
    print_table,
    table,
)
from orchestrator.records import comparison, runs
from orchestrator.records.comparison import Comparison
from orchestrator.records.receipt_text import show_cost, show_time

PRINTS = {"compare": Comparison}
"""What each command prints with --json."""
NOTHING = "–"


def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Run ids.", autocompletion=completion.run_ids),
    ],
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Compare winners, metrics, times, costs and the differing job fields of runs."""
    if len(names) < 2:
        raise RunError(f"{names[0]} alone cannot be compared; name at least two runs")
    place = open_storage(storage)
    found = comparison.compare([comparison.profile(runs.find(place, name)) for name in names])
    if as_json:
        print_json(found, PRINTS["compare"])
        return
    ids = [run.id for run in found.runs]
    shown = table("", *ids, left=("", *ids))
    for row in _rows(found):
        shown.add_row(*row)
    print_table(shown)


def _rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Yields the name and the values of each row."""
    yield "state", *(run.state for run in found.runs)
    yield "winner", *(run.winner or NOTHING for run in found.runs)
    for name, values in found.metrics.items():
        yield name, *(NOTHING if value is None else format_metric(value) for value in values)
    yield "time", *(show_time(run.time_s) for run in found.runs)
    yield (
        "cost",
        *(NOTHING if run.cost_usd is None else show_cost(run.cost_usd) for run in found.runs),
    )
    for path, scalars in found.fields.items():
        yield path, *(NOTHING if scalar is None else str(scalar) for scalar in scalars)
