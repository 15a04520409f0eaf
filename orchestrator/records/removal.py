"""Deletes runs and model versions that are no longer in use."""

import contextlib
import shutil
from collections.abc import Sequence

from jobs.errors import RunError
from jobs.storage.storage import Storage
from orchestrator.records import aliases, deployments, lease, registry, runs, summary
from orchestrator.records.runs import Run


def size_of(storage: Storage, key: str) -> int:
    """Returns the size in bytes of the files below a key."""
    return sum(entry.size for entry in storage.objects.entries(key))


def remove_run(run: Run) -> None:
    """Delete a run with its checkpoints and reports; its published model stays.

    Where the run does not say that it has ended, its lease shows whether its process still works.

    Raises:
        RunError: if the run has not ended.
    """
    notes = run.notes
    with contextlib.ExitStack() as stack:
        key = runs.lease_key_of(run, notes)
        if key and summary.present_state(run) == "running":
            try:
                held = lease.held(run.storage.objects, key, f"run {run.id}", lambda _: None)
                stack.enter_context(held)
            except RunError:
                raise RunError(
                    f"run {run.id} has not ended; wait for its end, or end it with winnow cancel"
                    f" {run.id}"
                ) from None
        run.storage.objects.delete_folder(f"runs/{run.id}")
        if run.storage.is_bucket:
            shutil.rmtree(run.folder, ignore_errors=True)


def check_unused(storage: Storage, name: str, identity: str, serving: Sequence[str]) -> None:
    """Check that a version may be deleted; `serving` has the ids that the cluster serves now.

    Raises:
        RunError: if the version does not exist, is served, an alias names it, or a published
            adapter has it as its base.
    """
    if not registry.exists(storage, name, identity):
        raise RunError(f"{name} has no version {identity!r} in {storage}")
    named = {
        alias: moves[-1].version
        for alias in (registry.DEPLOYED, registry.LATEST)
        if (moves := aliases.history(storage.objects, name, alias))
    }
    reason = use_of(name, identity, serving, [a for a, v in named.items() if v == identity])
    if reason:
        raise RunError(reason)
    adapters = registry.adapters_of(storage, name, identity)
    if adapters:
        raise RunError(
            f"{name}@{identity} is the base of the adapter {adapters[0]}; delete that first"
        )


def use_of(
    name: str, identity: str, serving: Sequence[str], alias_names: Sequence[str]
) -> str | None:
    """Returns why a version is in use and what would free it; None if it is not in use."""
    if identity in serving:
        return (
            f"{name}@{identity} serves now; take it down with winnow undeploy {name}, or deploy"
            " another version"
        )
    if registry.DEPLOYED in alias_names:
        return (
            f"{name}@{identity} is the version of {name} that was deployed last; deploy another"
            " version before you delete it"
        )
    if alias_names:
        return (
            f"the alias {alias_names[0]} names {name}@{identity}; publish another version before"
            " you delete it"
        )
    return None


def remove_version(storage: Storage, name: str, identity: str) -> None:
    """Delete the files of a version, and the record of its deployment."""
    deployments.forget(storage, name, identity)
    storage.objects.delete_folder(f"models/{name}/{identity}")
