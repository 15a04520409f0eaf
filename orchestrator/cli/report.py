"""`winnow report`: where a run's report is, and its receipt."""

import json
from typing import Annotated

import typer

from jobs.errors import RunError
from orchestrator.cli.options import DEFAULT_STORAGE, AsJson, Storage, out, print_json
from orchestrator.records import runs
from orchestrator.records.receipt import Receipt
from orchestrator.records.report import DATA, PAGE, receipt_text


def report(
    run: Annotated[str | None, typer.Argument(help="Run id; the newest if left out.")] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show the receipt of a run and the path of its HTML report; with --json all that it shows."""
    found = runs.find(storage, run)
    page, data = found.folder / PAGE, found.folder / DATA
    if not page.exists() or not data.exists():
        raise RunError(f"run {found.id} has not come to a report yet; see winnow status")
    if as_json:
        value = json.loads(data.read_bytes())
        print_json({"report": str(page.resolve()), **value})
        return
    receipt = found.read("receipt", Receipt)
    if receipt:
        out().print(receipt_text(receipt), markup=False)
    out().print(f"report    {page.resolve()}", markup=False)
