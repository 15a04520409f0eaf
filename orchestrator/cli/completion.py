"""Completes the names of runs and models on the command line, from the storage's folders."""

import contextlib

import typer

from jobs.errors import WinnowError
from jobs.storage.storage import Storage, open_storage
from orchestrator.cli.options import DEFAULT_STORAGE
from orchestrator.records import runs


def run_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the ids of runs that begin so, newest first; none if the storage cannot be read."""
    with contextlib.suppress(WinnowError):
        found = (run.id for run in runs.every(_storage(context)))
        return [identity for identity in found if identity.startswith(incomplete)]
    return []


def model_names(context: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of models that begin so; none if the storage cannot be read."""
    with contextlib.suppress(WinnowError):
        found = _storage(context).objects.children("models")
        return sorted(name for name in found if name.startswith(incomplete))
    return []


def _storage(context: typer.Context) -> Storage:
    return open_storage(context.params.get("storage") or DEFAULT_STORAGE)
