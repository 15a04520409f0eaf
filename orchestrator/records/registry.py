"""The registry of published model versions, which are complete folders named by their content."""

import hashlib
import json
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.errors import CheckpointError, RunError
from jobs.spec import JobSpec
from jobs.spec.model import REGISTRY_SCHEME
from jobs.storage import files, manifest
from jobs.storage.storage import Storage
from jobs.training import quality
from jobs.training.events import CheckpointRef
from orchestrator.records import aliases, model_card
from orchestrator.records.owner import owner
from serve.version import ModelVersion

DEPLOYED = "deployed"
"""Alias of the deployed version."""
LATEST = "latest"
"""Alias of the version published last."""
LONG_AGO = "2020-01-01T00:00:00+00:00"
"""Assumed publication date of versions without a date."""


def publish(
    spec: JobSpec,
    checkpoint: CheckpointRef,
    labels: tuple[str, ...],
    *,
    run_id: str,
    storage: Storage,
    copied: Path | None = None,
) -> ModelVersion:
    """Put a copy of a verified checkpoint's model into the registry, with a card and a manifest.

    `copied`: what `copy` returned for the same checkpoint; it is gone afterwards. Publishing the
    same run again changes nothing.

    Raises:
        CheckpointError: if the checkpoint is damaged.
        StorageError: if the storage is full or does not answer; earlier versions stay intact.
    """
    partial = copied or copy(spec.name, Path(checkpoint.path), run_id, storage)
    try:
        base = reference_of(spec.model.base, storage)
        thresholds = _thresholds(partial, labels)
        card = model_card.text_of(
            spec, base, checkpoint, labels, run_id, has_thresholds=bool(thresholds)
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
        details = {
            "version": asdict(_without_place(spec, checkpoint, labels, thresholds)),
            "job": spec.model_dump(mode="json", exclude_unset=True),
            "base": base,
            "base_weights": checkpoint.base_weights,
            "run": run_id,
            "step": checkpoint.step,
            "published": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        hashes = manifest.write(partial, details)
        identity = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:12]
        storage.objects.put_folder(f"models/{spec.name}/{identity}", partial)
    except (shutil.Error, OSError) as error:
        raise files.failed(partial.parent, "written", files.first_of(error)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    aliases.move(
        storage.objects, spec.name, LATEST, lambda _: identity, operation=run_id, by=owner()
    )
    return read(storage, spec.name, identity)


def _without_place(
    spec: JobSpec,
    checkpoint: CheckpointRef,
    labels: tuple[str, ...],
    thresholds: tuple[float, ...],
) -> ModelVersion:
    """Returns what is known of a version before it has a place, and so an id."""
    return ModelVersion(
        name=spec.name,
        id="",
        path="",
        labels=labels,
        is_pair=len(spec.data.text_columns) == 2,
        max_length=spec.data.max_length,
        task=spec.task.name,
        metrics=checkpoint.metrics,
        thresholds=thresholds,
    )


def copy(name: str, checkpoint: Path, run_id: str, storage: Storage) -> Path:
    """Verify a checkpoint and copy its model into the registry; returns the copy's partial folder.

    Raises CheckpointError for a damaged checkpoint, StorageError for a full storage.
    """
    manifest.verify(checkpoint)
    partial = files.partial_of(storage.folder / "models" / name / run_id)
    try:
        shutil.copytree(checkpoint / manifest.MODEL_DIR, partial)
    except (shutil.Error, OSError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise files.failed(partial.parent, "written", files.first_of(error)) from None
    return partial


def read(storage: Storage, name: str, identity: str | None = None) -> ModelVersion:
    """Returns a published version, by default the newest, after verifying its files.

    Raises:
        RunError: if there is no such version.
        CheckpointError: if its files are damaged.
    """
    chosen = identity or _latest(storage, name)
    key = f"models/{name}/{chosen}"
    if not exists(storage, name, chosen):
        raise RunError(f"{name} has no version {chosen!r} in {storage}")
    folder = storage.objects.get_folder(key)
    return _version(storage, key, folder, manifest.read(folder))


def described(storage: Storage, name: str, identity: str) -> tuple[ModelVersion, dict[str, Any]]:
    """Returns a version and its manifest, without verifying its files.

    Raises:
        RunError: if there is no such version.
        CheckpointError: if the manifest is damaged.
    """
    key = f"models/{name}/{identity}"
    stored = storage.objects.read(f"{key}/{manifest.MANIFEST}")
    if stored is None:
        raise RunError(f"{name} has no version {identity!r} in {storage}")
    details = manifest.parse(stored.content, key)
    return _version(storage, key, storage.folder / key, details), details


def exists(storage: Storage, name: str, identity: str) -> bool:
    """Returns whether a version is published."""
    return storage.objects.read(f"models/{name}/{identity}/{manifest.MANIFEST}") is not None


def reference_of(base: str, storage: Storage) -> str:
    """Returns the name of a base in `storage`, such as registry://reviews@0a1b; else the base."""
    for models in (f"{storage.url}/models/", f"{storage.folder}/models/"):
        name, _, identity = base.removeprefix(models).partition("/")
        if base.startswith(models) and identity and "/" not in identity:
            return f"{REGISTRY_SCHEME}{name}@{identity}"
    return base


def note_deployed(storage: Storage, version: ModelVersion) -> None:
    """Record that a version is deployed now."""
    aliases.move(storage.objects, version.name, DEPLOYED, lambda _: version.id, by=owner())


def deployed(storage: Storage, name: str) -> list[str]:
    """Returns the ids of the versions that were deployed, the newest last."""
    return [move.version for move in aliases.history(storage.objects, name, DEPLOYED)]


def every(storage: Storage) -> tuple[tuple[ModelVersion, datetime], ...]:
    """Returns every published version with its date, newest first, without verifying files."""
    versions = []
    for name in storage.objects.children("models"):
        for identity in storage.objects.children(f"models/{name}"):
            key = f"models/{name}/{identity}"
            stored = storage.objects.read(f"{key}/{manifest.MANIFEST}")
            if stored is None:
                continue
            try:
                details = manifest.parse(stored.content, key)
                published = datetime.fromisoformat(details.get("published", LONG_AGO))
                versions.append((_version(storage, key, storage.folder / key, details), published))
            except CheckpointError:
                continue
    return tuple(sorted(versions, key=lambda pair: pair[1], reverse=True))


def adapters_of(storage: Storage, name: str, identity: str) -> list[str]:
    """Returns the published adapters, as name@id, that are of no use without a version."""
    base, found = f"{REGISTRY_SCHEME}{name}@{identity}", []
    for model in storage.objects.children("models"):
        for each in storage.objects.children(f"models/{model}"):
            key = f"models/{model}/{each}"
            stored = storage.objects.read(f"{key}/{manifest.MANIFEST}")
            try:
                details = manifest.parse(stored.content, key) if stored else {}
            except CheckpointError:
                continue
            lora = details.get("job", {}).get("model", {}).get("adapter")
            if details.get("base") == base and lora and not lora.get("merge"):
                found.append(f"{model}@{each}")
    return found


def _latest(storage: Storage, name: str) -> str:
    moves = aliases.history(storage.objects, name, LATEST)
    if not moves:
        raise RunError(f"no version of {name} is published in {storage}; run the job first")
    return moves[-1].version


def _version(storage: Storage, key: str, folder: Path, details: dict[str, Any]) -> ModelVersion:
    place = {"id": folder.name, "path": str(folder), "url": f"{storage.url}/{key}"}
    try:
        values = {**details["version"], **place}
        lists = {"labels": values["labels"], "thresholds": values.get("thresholds", ())}
        return ModelVersion(**{**values, **{name: tuple(each) for name, each in lists.items()}})
    except (KeyError, TypeError):
        raise CheckpointError(f"{key} has a manifest of another format") from None


def _thresholds(folder: Path, labels: tuple[str, ...]) -> tuple[float, ...]:
    """The thresholds in a model's folder, in the order of its labels."""
    found = quality.read(folder)
    return tuple(found.thresholds[label] for label in labels) if found and found.thresholds else ()
