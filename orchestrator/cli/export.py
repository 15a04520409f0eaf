"""`winnow export`: exports a published model for other servers."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.storage.storage import open_storage
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    AsJson,
    StorageOption,
    out,
    print_json,
    results_only,
)
from orchestrator.execution import quiet_libraries
from orchestrator.records import registry


def export(
    model: Annotated[str, typer.Argument(help="Name of a published model.")],
    folder: Annotated[Path, typer.Option("--out", help="New folder to write.")],
    form: Annotated[str, typer.Option("--format", help="onnx or triton.")] = "onnx",
    version: Annotated[str | None, typer.Option(help="Version id; the newest if left out.")] = None,
    batch: Annotated[int, typer.Option(help="Largest batch in Triton, in texts.", min=1)] = 64,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Write a model as an ONNX graph with its tokenizer, or as a Triton model repository."""
    if form not in ("onnx", "triton"):
        raise typer.BadParameter(f"{form!r} is neither onnx nor triton", param_hint="--format")
    found = registry.read(open_storage(storage), model, version)
    quiet_libraries()
    from serve.tools.export import export as write

    with results_only():
        made = write(found, form, folder, batch_rows=batch)  # type: ignore[arg-type]
    if as_json:
        print_json(made)
        return
    out().print(f"{found.name} {found.id} is in {made.folder}", markup=False)
    out().print(
        f"its scores are those of the model; {made.texts_per_s:,.0f} texts/s on one core here,"
        f" fastest in batches of {made.batch_rows} of the longest texts"
    )
