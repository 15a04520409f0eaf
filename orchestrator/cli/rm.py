"""`winnow rm`: deletes a run or a version that is not in use."""

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from cluster import local
from jobs.errors import RunError
from jobs.storage.storage import Storage, open_storage
from orchestrator.cli import completion
from orchestrator.cli.endpoints import served_by
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Address,
    AsJson,
    StorageOption,
    out,
    print_json,
)
from orchestrator.records import removal, runs

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Deleted:
    """A run or version that was deleted."""

    deleted: str
    bytes: int
    """Size of its files in bytes."""


PRINTS = {"rm": Deleted}
"""What each command prints with --json."""


def rm(
    what: Annotated[
        str,
        typer.Argument(
            help="Run id, or MODEL@VERSION.",
            metavar="RUN|MODEL@VERSION",
            autocompletion=completion.run_ids,
        ),
    ],
    storage: StorageOption = DEFAULT_STORAGE,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking first.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Delete an ended run, or a version that neither serves nor has an alias.

    A version is looked for on the cluster at --address, RAY_ADDRESS or this machine, if there is
    one.
    """
    place = open_storage(storage)
    name, at, version = what.partition("@")
    size = (
        _remove_version(place, name, version, address, yes=yes)
        if at
        else _remove_run(place, what, yes=yes)
    )
    if as_json:
        print_json(Deleted(what, size), PRINTS["rm"])
    else:
        out().print(f"deleted {what}, {size / MIB:.1f} MiB", markup=False)


def _remove_run(storage: Storage, identity: str, *, yes: bool) -> int:
    run = runs.find(storage, identity)
    size = removal.size_of(storage, f"runs/{run.id}")
    if not yes:
        _confirm(f"run {run.id}", size)
    removal.remove_run(run)
    return size


def _remove_version(
    storage: Storage, name: str, version: str, address: str | None, *, yes: bool
) -> int:
    is_up = address or os.environ.get("RAY_ADDRESS") or local.running()
    served = served_by(address)[0] if is_up else ()
    serving = [each.version for each in served if each.name == name and each.version]
    removal.check_unused(storage, name, version, serving)
    size = removal.size_of(storage, f"models/{name}/{version}")
    if not yes:
        _confirm(f"version {version} of {name}", size)
    removal.remove_version(storage, name, version)
    return size


def _confirm(what: str, size: int) -> None:
    """Ask on stderr; RunError for any answer but yes."""
    try:
        agreed = typer.confirm(f"delete {what}, {size / MIB:.1f} MiB?", err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise RunError(f"{what} is kept; answer yes or pass --yes to delete it")
