"""The run directory: one file for each finished stage, and a journal of what happened."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from jobs.errors import RunError
from jobs.spec import JobSpec
from orchestrator.records import journal

Value = TypeVar("Value")

JOURNAL = "journal.jsonl"
SPEC_FILE = "job.yaml"
"""The job as it was run, with defaults and absolute paths."""
STAGES = (
    "inventory",
    "plan",
    "measurements",
    "trials",
    "winner",
    "fit",
    "model",
    "endpoint",
    "receipt",
)
"""Files of finished stages, in order."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a job, kept in a folder."""

    id: str
    folder: Path

    def stage(self, name: str, kind: type[Value], make: Callable[[], Value]) -> Value:
        """The recorded value of a stage, or the value that `make` returns, recorded."""
        found = self.read(name, kind)
        if found is not None:
            return found
        value = make()
        self.write(name, value)
        return value

    def write(self, name: str, value: object) -> None:
        """Record a stage's value, whole or not at all."""
        text = TypeAdapter(type(value)).dump_json(value, indent=2)
        write_atomically(self.folder / f"{name}.json", text)
        self.note("finished", stage=name)

    def read(self, name: str, kind: type[Value]) -> Value | None:
        """The recorded value of a stage; None before it finished."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            return TypeAdapter(kind).validate_json(path.read_bytes())
        except ValidationError:
            raise RunError(f"{path} was altered and cannot be read; start a new run") from None

    def append(self, name: str, value: object) -> None:
        """Record one value of a stage that makes many."""
        journal.append(self.folder / f"{name}.jsonl", TypeAdapter(type(value)).dump_json(value))

    def read_all(self, name: str, kind: type[Value]) -> tuple[Value, ...]:
        """The values recorded one by one; what was torn or altered is left out, and noted."""
        path = self.folder / f"{name}.jsonl"
        lines = journal.read(path)
        values, damaged = [], len(lines.damaged)
        for line in lines.values:
            try:
                values.append(TypeAdapter(kind).validate_json(line))
            except ValidationError:
                damaged += 1
        if damaged:
            self.note("damaged", file=path.name, lines=str(damaged))
        return tuple(values)

    def note(self, event: str, **details: str) -> None:
        """Add a line to the journal."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **details})
        journal.append(self.folder / JOURNAL, line.encode())

    @property
    def notes(self) -> tuple[dict[str, str], ...]:
        """The journal's whole lines."""
        return tuple(json.loads(line) for line in journal.read(self.folder / JOURNAL).values)

    @property
    def finished(self) -> tuple[str, ...]:
        """Names of the stages that have a result."""
        return tuple(s for s in STAGES if (self.folder / f"{s}.json").exists())


def create(storage: Path, spec: JobSpec, now: datetime) -> Run:
    """Make the folder of a new run."""
    identity = f"{spec.name}-{now:%Y%m%d-%H%M%S}-{digest(spec)[:6]}"
    run = Run(identity, storage / "runs" / identity)
    try:
        run.folder.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"run {identity} exists already; wait a second or use --resume") from None
    except OSError as error:
        raise RunError(f"storage {storage} cannot be written: {error.strerror}") from None
    write_atomically(run.folder / SPEC_FILE, to_yaml(spec).encode())
    run.note("created", digest=digest(spec))
    return run


def resume(storage: Path, spec: JobSpec) -> Run:
    """The newest run of exactly this job; RunError when there is none."""
    for run in every(storage):
        if run.id.endswith(digest(spec)[:6]) and run.id.startswith(f"{spec.name}-"):
            run.note("resumed")
            return run
    raise RunError(
        f"no run of this job in {storage}; a changed job is a new one, so leave --resume out"
    )


def every(storage: Path) -> list[Run]:
    """All runs, newest first."""
    folders = [path for path in (storage / "runs").glob("*") if (path / SPEC_FILE).exists()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [Run(path.name, path) for path in folders]


def find(storage: Path, identity: str | None) -> Run:
    """A run by id, or the newest one; RunError when it is not there."""
    runs = every(storage)
    for run in runs:
        if identity in (None, run.id):
            return run
    known = f"; newest is {runs[0].id}" if runs else ""
    what = f"run {identity!r} is not" if identity else "no run is"
    raise RunError(f"{what} in {storage}{known}")


def digest(spec: JobSpec) -> str:
    """Hex digest of everything in a job."""
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def to_yaml(spec: JobSpec) -> str:
    """A job as a file that can be run as it is; what was left out stays out."""
    values: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the place, flush, and rename, so that no reader sees half a file."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)
    journal.sync_folder(path.parent)
