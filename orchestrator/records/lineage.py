"""Where a published version comes from, and who moved its aliases when."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import yaml

from jobs.storage.storage import Storage
from orchestrator.records import aliases, inputs, registry, runs
from orchestrator.records.aliases import Move
from orchestrator.records.runs import Run
from serve.version import ModelVersion


@dataclass(frozen=True, slots=True)
class Listed:
    """A published version among others."""

    version: ModelVersion
    published: datetime
    is_latest: bool
    is_deployed: bool
    """Whether it was deployed last; whether it serves now, its cluster knows."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of one version."""

    version: ModelVersion
    published: str
    """Time in ISO 8601; empty for a version of an older release."""
    run: str
    step: int | None
    """Optimizer step of its checkpoint."""
    base: str
    job: str
    """The job that trained it, as YAML."""
    inputs: Mapping[str, str]
    """Digests of data, base model and code; empty if the run's files are gone."""
    latest: tuple[Move, ...]
    deployed: tuple[Move, ...]
    """Every deployment of the model, the newest last."""


def every(storage: Storage) -> tuple[Listed, ...]:
    """Returns every published version, newest first."""
    found = registry.every(storage)
    present = {
        (name, alias): moves[-1].version
        for name in {version.name for version, _ in found}
        for alias in (registry.LATEST, registry.DEPLOYED)
        if (moves := aliases.history(storage.objects, name, alias))
    }
    return tuple(
        Listed(
            version,
            published,
            is_latest=present.get((version.name, registry.LATEST)) == version.id,
            is_deployed=present.get((version.name, registry.DEPLOYED)) == version.id,
        )
        for version, published in found
    )


def lineage(storage: Storage, name: str, identity: str) -> Lineage:
    """Returns the origin of a version, without verifying its files.

    Raises:
        RunError: if it is not published.
        CheckpointError: if its manifest is damaged.
    """
    version, details = registry.described(storage, name, identity)
    job, run = details.get("job", {}), str(details.get("run", ""))
    return Lineage(
        version=version,
        published=str(details.get("published", "")),
        run=run,
        step=details.get("step"),
        base=str(details.get("base") or job.get("model", {}).get("base", "")),
        job=yaml.safe_dump(job, sort_keys=False, allow_unicode=True),
        inputs=inputs.kept(Run(run, storage)) if runs.NAME.fullmatch(run) else {},
        latest=aliases.history(storage.objects, name, registry.LATEST),
        deployed=aliases.history(storage.objects, name, registry.DEPLOYED),
    )
