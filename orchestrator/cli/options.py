"""Shared by the commands: options, loading a job, printing results and errors."""

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import rich.console
import rich.table
import typer
from pydantic import TypeAdapter

from cluster import catalogue
from jobs.errors import JobFileError, Problem
from jobs.loader import load
from jobs.loader.files import files_exist
from jobs.loader.rows import rows_suit_the_job
from jobs.spec import JobSpec
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import S3_SCHEME, Storage, open_storage
from orchestrator.decisions.resolve import with_absolute_paths

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
RAY_JOB_COPY = "runtime_resources"
"""Part of the path of a submitted job's working directory, which is a temporary copy."""


def load_job(
    path: Path, settings: list[str] | None, *, is_elsewhere: bool = False, reads_rows: bool = True
) -> JobSpec:
    """Load and check a job file, and make its paths absolute.

    `is_elsewhere`: the job runs on other machines, so its paths are kept and not checked here.
    `reads_rows`: whether to check the rows, which commands without training need not.

    Raises:
        JobFileError: with everything that is wrong.
    """
    if is_elsewhere:
        return load(path, settings=settings or (), extra_rules=(catalogue.accelerator_rules,))
    folder = path.parent
    row_rules = (rows_suit_the_job(folder),) if reads_rows else ()
    rules = (catalogue.accelerator_rules, files_exist(folder), *row_rules)
    spec = load(path, settings=settings or (), extra_rules=rules)
    return with_absolute_paths(spec, folder)


def load_served(path: Path, settings: list[str] | None, purpose: str) -> tuple[JobSpec, ServeSpec]:
    """Load a job and its serve section.

    Raises:
        JobFileError: if it has no serve section, which `purpose` requires.
    """
    spec = load_job(path, settings, reads_rows=False)
    if spec.serve is None:
        what = f"is required to {purpose}; add route"
        raise JobFileError([Problem(str(path), 0, 0, "serve", what)])
    return spec, spec.serve


def storage_of(spec: JobSpec) -> Storage:
    """Open a job's storage; in a submitted job, a relative path is relative to the home folder."""
    is_copy = RAY_JOB_COPY in str(Path.cwd())
    if is_copy and not spec.storage.startswith((S3_SCHEME, "/", "~")):
        return open_storage(Path.home() / spec.storage)
    return open_storage(spec.storage)


def out() -> rich.console.Console:
    """Returns the console for results."""
    return rich.console.Console(highlight=False, soft_wrap=True)


def results_only() -> contextlib.AbstractContextManager[Any]:
    """Redirect stdout to stderr inside a block, because Ray prints messages to stdout."""
    return contextlib.redirect_stdout(sys.stderr)


def table(*names: str, left: tuple[str, ...]) -> rich.table.Table:
    """Returns a table with these columns; those in `left` are left-aligned."""
    made = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(name, justify="left" if name in left else "right")
    return made


def print_json(value: object) -> None:
    """Print a result as JSON."""
    sys.stdout.write(TypeAdapter(type(value)).dump_json(value, indent=2).decode() + "\n")


def print_error(error: Exception) -> None:
    """Print one line for each problem, or JSON if the command has --json."""
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


def quiet_libraries() -> None:
    """Turn off the libraries' terminal output; their log files are not affected."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault(
        "TUNE_DISABLE_SIGINT_HANDLER", "1"
    )  # `orchestrator.interruption` handles Ctrl-C
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
