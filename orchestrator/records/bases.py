"""Published versions as the base of the next job: `registry://name@alias` or `registry://name@id`."""

import re
from pathlib import Path

from jobs.errors import ModelError
from jobs.spec import JobSpec
from jobs.spec.model import REGISTRY_SCHEME
from jobs.storage.storage import Storage
from jobs.training.model import location
from orchestrator.records import aliases, registry

REFERENCE = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)(@(?P<which>[a-z0-9-]+))?")
"""Name of a model, and perhaps an alias or the id of a version."""


def with_located_base(spec: JobSpec, storage: Storage) -> JobSpec:
    """Returns the job with the folder or URL of the version that its base names; else the job.

    The version is looked up once, when the job is loaded, so that an alias that moves meanwhile
    changes nothing.

    Raises:
        ModelError: if the base is no reference to a version, or the version is an adapter.
        RunError: if the storage holds no such version.
        CheckpointError: if its files are damaged.
    """
    base = spec.model.base
    if not base.startswith(REGISTRY_SCHEME):
        return spec
    found = REFERENCE.fullmatch(base.removeprefix(REGISTRY_SCHEME))
    if found is None:
        raise ModelError(
            f"{base} names no published version; write {REGISTRY_SCHEME}name@{registry.LATEST} or"
            f" {REGISTRY_SCHEME}name@id, as winnow models list shows them"
        )
    name, which = found["name"], found["which"] or registry.LATEST
    moves = aliases.history(storage.objects, name, which)
    is_unpublished = not moves and which == registry.LATEST
    identity = None if is_unpublished else moves[-1].version if moves else which
    version = registry.read(storage, name, identity)
    if (Path(version.path) / location.ADAPTER_CONFIG).exists():
        raise ModelError(
            f"{base} is an adapter without its base; train it with model.adapter.merge: true"
        )
    place = version.url if storage.is_bucket else version.path
    return spec.model_copy(update={"model": spec.model.model_copy(update={"base": place})})
