"""`winnow report`: prints a run's receipt and the path of its report."""

import json
from typing import Annotated

import typer

from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    AsJson,
    StorageOption,
    out,
    print_json,
)
from orchestrator.records import runs
from orchestrator.records.receipt import Receipt
from orchestrator.records.receipt_text import receipt_text
from orchestrator.records.report import DATA, PAGE


def report(
    run: Annotated[str | None, typer.Argument(help="Run id; the newest if left out.")] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show the receipt of a run and the path of its HTML report; --json prints its content."""
    found = runs.find(open_storage(storage), run)
    page, data = f"{found.url}/{PAGE}", found.kept(DATA)
    if data is None:
        raise RunError(f"run {found.id} has no report yet; see its progress with winnow status")
    if as_json:
        print_json({"report": page, **json.loads(data)})
        return
    receipt = found.read("receipt", Receipt)
    if receipt:
        out().print(receipt_text(receipt), markup=False)
    out().print(f"report    {page}", markup=False)
