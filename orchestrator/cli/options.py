"""Shared by the commands: options, and printing results and errors."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import JobFileError

if TYPE_CHECKING:  # each takes a while to import, and `winnow --help` needs none of them
    import rich.console
    import rich.table

JobFile = Annotated[Path, typer.Argument(help="The job file.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change one field, such as train.epochs=1."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
InsecureLocal = Annotated[
    bool,
    typer.Option("--insecure-local", help="Use a cluster without tokens on this machine."),
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster to join; by default RAY_ADDRESS or a local one.")
]
StorageOption = Annotated[
    str, typer.Option("--storage", help="Folder of runs and models, or s3://bucket/prefix.")
]
InventoryFile = Annotated[
    Path | None, typer.Option("--inventory", help="Nodes from a JSON file instead of a cluster.")
]

DEFAULT_STORAGE = ".winnow"
FULL_WIDTH = 1000
"""Most characters of a table's line."""


def out() -> "rich.console.Console":
    """Returns the console for results."""
    import rich.console

    return rich.console.Console(highlight=False, soft_wrap=True)


def results_only() -> contextlib.AbstractContextManager[Any]:
    """Redirect stdout to stderr inside a block, because Ray prints messages to stdout."""
    return contextlib.redirect_stdout(sys.stderr)


def table(*names: str, left: tuple[str, ...]) -> "rich.table.Table":
    """Returns a table with these columns; those in `left` are left-aligned."""
    import rich.table

    made = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(name, justify="left" if name in left else "right")
    return made


def print_table(made: "rich.table.Table") -> None:
    """Print a table in its full width, so that no id in it is cut off."""
    import rich.console

    rich.console.Console(highlight=False, width=FULL_WIDTH).print(made)


def print_json(value: object, kind: Any = None) -> None:
    """Print a result as JSON, as the type `kind`, which is by default the value's own."""
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(kind or type(value))
    sys.stdout.write(adapter.dump_json(value, indent=2).decode() + "\n")


def print_error(error: Exception) -> None:
    """Print one line for each problem, or JSON if the command has --json."""
    if "--json" in sys.argv:
        problems: list[dict[str, Any]] = []
        if isinstance(error, JobFileError):
            problems = [dataclasses.asdict(problem) for problem in error.problems]
        sys.stdout.write(json.dumps({"error": str(error), "problems": problems}, indent=2) + "\n")
        return
    import rich.console

    console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
    for line in str(error).splitlines():
        console.print("[bold red]error:[/]", end=" ")
        console.print(line, markup=False)
    if isinstance(error, JobFileError) and len(error.problems) > 1:
        console.print(f"{len(error.problems)} problems", markup=False)
