"""The serve settings that each version was deployed with, kept beside the versions of its model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.errors import RunError
from jobs.spec.serve import ServeSpec
from jobs.storage import manifest
from jobs.storage.storage import Storage
from orchestrator.records import aliases, registry

Settings = Mapping[str, Any]
"""The serve section of a job, or the whole job, as a job file has it."""


def keep(storage: Storage, name: str, identity: str, serving: ServeSpec) -> None:
    """Record the settings of a version's newest deployment."""
    values = serving.model_dump(mode="json", exclude_unset=True)
    storage.objects.write(_key(name, identity), json.dumps(values, indent=2).encode())


def forget(storage: Storage, name: str, identity: str) -> None:
    """Delete the record of a version that is deleted."""
    storage.objects.delete(_key(name, identity))


def before(storage: Storage, name: str) -> str:
    """Returns the version that was deployed before the present one, and is still published.

    Raises:
        RunError: if there is no such version.
    """
    moves = registry.deployed(storage, name)
    older = [identity for identity in moves[:-1] if registry.exists(storage, name, identity)]
    return aliases.previous(name, [*older, *moves[-1:]])


def job_to_promote(storage: Storage, name: str, identity: str) -> Settings:
    """Returns the job of a version with the settings of its model's newest deployment.

    Raises:
        RunError: if the version is not published, or neither record has a serve section.
    """
    newest = [*reversed(registry.deployed(storage, name)), identity]
    return _job(storage, name, identity, newest)


def job_to_restore(storage: Storage, name: str, identity: str) -> Settings:
    """Returns the job of a version with the settings of its own newest deployment.

    Raises:
        RunError: as `job_to_promote` does.
    """
    return _job(storage, name, identity, [identity])


def _job(storage: Storage, name: str, identity: str, deployed: Sequence[str]) -> Settings:
    key = f"models/{name}/{identity}"
    stored = storage.objects.read(f"{key}/{manifest.MANIFEST}")
    if stored is None:
        raise RunError(f"{name} has no version {identity!r} in {storage}")
    job = manifest.parse(stored.content, key).get("job", {})
    found = (storage.objects.read(_key(name, each)) for each in deployed)
    kept = next((json.loads(each.content) for each in found if each), None)
    return with_serving(job, kept, f"{name}@{identity}", storage.url)


def with_serving(job: Settings, kept: Settings | None, what: str, storage: str) -> Settings:
    """Returns a version's job with the kept serve section, else with its own, in this storage.

    Raises:
        RunError: if there is no serve section.
    """
    serving = kept or job.get("serve")
    if not job or not serving:
        raise RunError(
            f"it is not recorded how {what} is to be served: its job has no serve section, and it"
            " was not deployed; give a job file with a serve section instead of the name"
        )
    return {**job, "serve": serving, "storage": storage}


def _key(name: str, identity: str) -> str:
    return f"models/{name}/serve-{identity}.json"
