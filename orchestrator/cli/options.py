"""What the commands share: options, loading a job, and printing results and errors."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import rich.console
import rich.table
import typer
from pydantic import TypeAdapter

from jobs.errors import JobFileError
from jobs.spec import JobSpec
from jobs.spec.serve import ServeSpec
from orchestrator.loading import load_job, serving_of

JobFile = Annotated[Path, typer.Argument(help="The job file.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change one field, such as train.epochs=1."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
InsecureLocal = Annotated[
    bool,
    typer.Option("--insecure-local", help="Use a cluster of this machine that asks for no token."),
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


def load_served(path: Path, settings: list[str] | None, purpose: str) -> tuple[JobSpec, ServeSpec]:
    """A job and its serve section; JobFileError where it has none, with what it is needed for."""
    spec = load_job(path, settings, reads_rows=False)
    return spec, serving_of(spec, purpose, str(path))


def out() -> rich.console.Console:
    """Where results for people go."""
    return rich.console.Console(highlight=False, soft_wrap=True)


def results_only() -> contextlib.AbstractContextManager[Any]:
    """Keep stdout for results: Ray tells of lost workers there, and progress is none."""
    return contextlib.redirect_stdout(sys.stderr)


def table(*names: str, left: tuple[str, ...]) -> rich.table.Table:
    """A table of these columns; those in `left` hold words, the others figures."""
    made = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(name, justify="left" if name in left else "right")
    return made


def print_json(value: object) -> None:
    """A result for programs."""
    sys.stdout.write(TypeAdapter(type(value)).dump_json(value, indent=2).decode() + "\n")


def print_error(error: Exception) -> None:
    """One line for each cause, or JSON when the command was asked for it."""
    if "--json" in sys.argv:
        problems: list[dict[str, Any]] = []
        if isinstance(error, JobFileError):
            problems = [dataclasses.asdict(problem) for problem in error.problems]
        sys.stdout.write(json.dumps({"error": str(error), "problems": problems}, indent=2) + "\n")
        return
    console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
    for line in str(error).splitlines():
        console.print("[bold red]error:[/]", end=" ")
        console.print(line, markup=False)
    if isinstance(error, JobFileError) and len(error.problems) > 1:
        console.print(f"{len(error.problems)} problems", markup=False)
