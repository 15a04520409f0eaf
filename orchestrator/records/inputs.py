"""Digests of a run's inputs besides the job file: data, base model and code."""

import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from jobs.errors import ModelError, RunError, StorageError
from jobs.spec import JobSpec
from jobs.spec.data import SourceSpec
from jobs.storage import files, manifest
from jobs.storage.bucket import BucketObjects
from jobs.storage.storage import S3_SCHEME, Storage
from jobs.training.model import location
from orchestrator.records import runs
from orchestrator.records.owner import owner
from orchestrator.records.runs import Run

FILE = "inputs.json"
"""Name of the file with the digests in a run's folder."""
MISSING = "not there"
"""Digest of an input that does not exist."""

Inputs = Mapping[str, str]
"""Digests by field of the job, and of `code`."""


def inputs_of(spec: JobSpec) -> Inputs:
    """Compute the digests of a job's inputs; a hub id is its own digest."""
    return {
        "data.train": _of_source(spec.data.train),
        "data.eval": _of_source(spec.data.eval),
        "model.base": _of_base(spec.model.base),
        "code": _of_code(spec.task.training),
    }


def digest(inputs: Inputs) -> str:
    """Returns one hex digest of all inputs."""
    return hashlib.sha256(json.dumps(dict(inputs), sort_keys=True).encode()).hexdigest()


def find_or_create(
    storage: Storage,
    spec: JobSpec,
    *,
    resume: bool = False,
    or_new: bool = False,
    accepts_changes: bool = False,
) -> Run:
    """Returns with `resume` the newest run of a job, otherwise a new run.

    `or_new`: create a run if there is none to resume, or if its inputs have changed.
    `accepts_changes`: resume a run although its inputs have changed.

    Raises:
        RunError: if there is no run to resume, or its inputs changed and that is not accepted.
    """
    now = inputs_of(spec)
    newest = runs.newest_of(storage, spec) if resume else None
    is_other = newest is not None and bool(changed(newest, now)) and not accepts_changes
    if newest is not None and not (or_new and is_other):
        newest.note("resumed")
        _check(newest, now, accepts_changes=accepts_changes)
        return newest
    if resume and not or_new:
        raise RunError(
            f"no run of this job in {storage}; a changed job is a new job, so leave --resume out"
        )
    run = runs.create(storage, spec, datetime.now(UTC), spec.owner or owner())
    _keep(run, now)
    return run


def go_on(run: Run, spec: JobSpec, *, accepts_changes: bool = False) -> None:
    """Write down that a run goes on. Raises RunError where its inputs changed since it began."""
    run.note("resumed")
    _check(run, inputs_of(spec), accepts_changes=accepts_changes)


def changed(run: Run, inputs: Inputs) -> tuple[str, ...]:
    """Returns the inputs that changed since the run began; none for runs of older releases."""
    return tuple(name for name, value in kept(run).items() if inputs.get(name) != value)


def kept(run: Run) -> Inputs:
    """Returns the digests that a run began with; empty for runs of older releases."""
    content = run.kept(FILE)
    found: dict[str, str] = json.loads(content) if content else {}
    return found


def _keep(run: Run, inputs: Inputs) -> None:
    run.keep(FILE, json.dumps(dict(inputs), indent=2).encode())


def _check(run: Run, inputs: Inputs, *, accepts_changes: bool) -> None:
    """Raise RunError if inputs changed, or with `accepts_changes` record the changes."""
    names = changed(run, inputs)
    if not names:
        return
    listed = " and ".join(names)
    if not accepts_changes:
        raise RunError(
            f"{listed} changed since run {run.id} began, so new results would not match the earlier"
            " ones; leave --resume out for a new run, or add --accept-changes"
        )
    run.note("accepted", changes=", ".join(names))
    _keep(run, inputs)


def _of_source(source: SourceSpec) -> str:
    return _joined(_of_path(path) for path in source.paths) + f"/{source.name}/{source.split}"


def _of_base(base: str) -> str:
    if base.startswith(S3_SCHEME):
        return _of_bucket(base, "")
    try:
        place = location.locate(base, has_weights=False)
    except ModelError:
        return MISSING
    return _of_folder(place) if isinstance(place, Path) else place


def _of_path(path: str) -> str:
    if path.startswith(S3_SCHEME):
        bucket, _, key = path.removeprefix(S3_SCHEME).partition("/")
        return _of_bucket(f"{S3_SCHEME}{bucket}", key)
    found = files.matching(path)
    if not found:
        return path if not path.startswith(("/", ".", "~")) else MISSING
    return _joined(
        _of_folder(place) if place.is_dir() else manifest.identity(place) for place in found
    )


def _of_bucket(url: str, key: str) -> str:
    try:
        objects = BucketObjects(url)
        if key:
            return str(objects.tag(key))
        entries = sorted(objects.entries(""), key=lambda entry: entry.key)
        return _joined(f"{entry.key} {entry.size} {entry.modified}" for entry in entries)
    except StorageError as error:
        if error.is_passing:
            raise
        return MISSING


def _of_folder(folder: Path) -> str:
    places = sorted(path for path in folder.rglob("*") if path.is_file())
    return _joined(f"{path.relative_to(folder)} {manifest.identity(path)}" for path in places)


@functools.cache
def _of_code(training: str) -> str:
    """The digest of the modules that train, and of the package of the task's torch half."""
    folders = [Path(location.__file__).parents[1]]
    spec = importlib.util.find_spec(training.partition(":")[0])
    if spec and spec.origin:
        folders.append(Path(spec.origin).parent)
    return _joined(
        f"{path.relative_to(folder)} {manifest.identity(path)}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
    )


def _joined(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
