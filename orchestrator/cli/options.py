"""What the commands share: options, loading a job, and printing results and errors."""

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
RAY_JOB_COPY = "runtime_resources"
"""Part of the working directory's path inside a submitted Ray job, which is a throw-away copy."""


def load_job(
    path: Path, settings: list[str] | None, *, is_elsewhere: bool = False, reads_rows: bool = True
) -> JobSpec:
    """Load and check a job file, with the paths in it made absolute.

    A job that runs elsewhere keeps its paths, and its files are not looked for here. Commands that
    train nothing read no rows.
    """
    if is_elsewhere:
        return load(path, settings=settings or (), extra_rules=(catalogue.accelerator_rules,))
    folder = path.parent
    of_rows = (rows_suit_the_job(folder),) if reads_rows else ()
    rules = (catalogue.accelerator_rules, files_exist(folder), *of_rows)
    spec = load(path, settings=settings or (), extra_rules=rules)
    return with_absolute_paths(spec, folder)


def load_served(path: Path, settings: list[str] | None, purpose: str) -> tuple[JobSpec, ServeSpec]:
    """A job and its serve section; JobFileError where it has none, with what it is needed for."""
    spec = load_job(path, settings, reads_rows=False)
    if spec.serve is None:
        what = f"is required to {purpose}; add route"
        raise JobFileError([Problem(str(path), 0, 0, "serve", what)])
    return spec, spec.serve


def storage_of(spec: JobSpec) -> Storage:
    """Where a job keeps its runs; a submitted job's relative storage goes to the home folder."""
    is_copy = RAY_JOB_COPY in str(Path.cwd())
    if is_copy and not spec.storage.startswith((S3_SCHEME, "/", "~")):
        return open_storage(Path.home() / spec.storage)
    return open_storage(spec.storage)


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


def quiet_libraries() -> None:
    """Keep chatter of libraries off the terminal; their log files are not touched."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is ours to handle
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
