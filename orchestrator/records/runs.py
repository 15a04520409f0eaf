"""The run directory: one file for each finished stage, and a journal of what happened."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from jobs.errors import RunError
from jobs.spec import JobSpec
from jobs.storage.files import write_atomically
from jobs.storage.storage import Storage
from orchestrator.records import journal

Value = TypeVar("Value")

JOURNAL = "journal.jsonl"
SPEC_FILE = "job.yaml"
"""The job as it was run, with defaults and absolute paths."""
WINNER = "winner.yaml"
"""The job that its sweep chose, as a file that can be run as it is."""
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
NAME = re.compile(r"(?P<job>[a-z0-9-]+)-(?P<time>\d{8}-\d{6})-(?P<digest>[0-9a-f]{6})")
"""Of a run's folder."""


def _anyone() -> None:
    """No lease to check."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a job, and its files in the storage."""

    id: str
    storage: Storage
    check: Callable[[], None] = field(default=_anyone, compare=False)
    """Raises RunError when another process may own the run by now; asked before each write."""

    @property
    def folder(self) -> Path:
        """On this machine: the run's files, or a place to work in where they are in a bucket."""
        return self.storage.folder / "runs" / self.id

    @property
    def url(self) -> str:
        """Where the run's files are."""
        return f"{self.storage.url}/runs/{self.id}"

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file, whole or not at all; where it is then."""
        self.check()
        self.storage.objects.write(f"runs/{self.id}/{name}", content)
        return f"{self.url}/{name}"

    def kept(self, name: str) -> bytes | None:
        """A file's content; None where it is not."""
        found = self.storage.objects.read(f"runs/{self.id}/{name}")
        return found.content if found else None

    def local_copy(self, name: str) -> Path:
        """A kept file on this machine, where commands can read it. RunError where it is not."""
        path, content = self.folder / name, self.kept(name)
        if content is None:
            raise RunError(f"{self.url}/{name} does not exist; start a new run")
        if self.storage.is_bucket:
            write_atomically(path, content)
        return path

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
        self.keep(f"{name}.json", TypeAdapter(type(value)).dump_json(value, indent=2))
        self.note("finished", stage=name)

    def read(self, name: str, kind: type[Value]) -> Value | None:
        """The recorded value of a stage; None before it finished."""
        content = self.kept(f"{name}.json")
        if content is None:
            return None
        try:
            return TypeAdapter(kind).validate_json(content)
        except ValidationError:
            raise RunError(
                f"{self.url}/{name}.json was altered and cannot be read; start a new run"
            ) from None

    def value(self, name: str, kind: type[Value]) -> Value:
        """The recorded value of a stage; RunError before it finished."""
        found = self.read(name, kind)
        if found is None:
            raise RunError(f"{self.url} has no {name} yet; resume the run")
        return found

    def append(self, name: str, value: object) -> None:
        """Record one value of a stage that makes many."""
        self._append(f"{name}.jsonl", TypeAdapter(type(value)).dump_json(value))

    def read_all(self, name: str, kind: type[Value]) -> tuple[Value, ...]:
        """The values recorded one by one; what was torn or altered is left out, and noted."""
        lines = journal.read(self.storage.objects, f"runs/{self.id}/{name}.jsonl")
        values, damaged = [], len(lines.damaged)
        for line in lines.values:
            try:
                values.append(TypeAdapter(kind).validate_json(line))
            except ValidationError:
                damaged += 1
        if damaged:
            self.note("damaged", file=f"{name}.jsonl", lines=str(damaged))
        return tuple(values)

    def note(self, event: str, **details: str) -> None:
        """Add a line to the journal."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append(JOURNAL, json.dumps({"time": now, "event": event, **details}).encode())

    @property
    def notes(self) -> tuple[dict[str, str], ...]:
        """The journal's whole lines."""
        lines = journal.read(self.storage.objects, f"runs/{self.id}/{JOURNAL}")
        return tuple(json.loads(line) for line in lines.values)

    @property
    def finished(self) -> tuple[str, ...]:
        """Names of the stages that have a result."""
        return tuple(stage for stage in STAGES if self.kept(f"{stage}.json") is not None)

    def _append(self, name: str, value: bytes) -> None:
        self.check()
        journal.append(self.storage.objects, f"runs/{self.id}/{name}", value)


def create(storage: Storage, spec: JobSpec, now: datetime) -> Run:
    """Make a new run. Raises RunError where one of this second exists, StorageError."""
    identity = f"{spec.name}-{now:%Y%m%d-%H%M%S}-{digest(spec)[:6]}"
    run = Run(identity, storage)
    place = f"runs/{identity}/{SPEC_FILE}"
    if storage.objects.swap(place, to_yaml(spec).encode(), None) is None:
        raise RunError(f"run {identity} exists already; wait a second or use --resume")
    run.note("created", digest=digest(spec))
    return run


def resume(storage: Storage, spec: JobSpec) -> Run:
    """The newest run of exactly this job; RunError when there is none."""
    run = newest_of(storage, spec)
    if run is None:
        raise RunError(
            f"no run of this job in {storage}; a changed job is a new one, so leave --resume out"
        )
    run.note("resumed")
    return run


def newest_of(storage: Storage, spec: JobSpec) -> Run | None:
    """The newest run of exactly this job."""
    found = (run for run in every(storage) if run.id.endswith(f"-{digest(spec)[:6]}"))
    return next((run for run in found if NAME.fullmatch(run.id)["job"] == spec.name), None)  # type: ignore[index]  # such names alone are listed


def is_of(run: Run, spec: JobSpec) -> bool:
    """Whether a run began with exactly this job, with today's defaults where it names none."""
    try:
        values = yaml.safe_load(run.kept(SPEC_FILE) or b"")
        return JobSpec.model_validate(values).model_dump(mode="json") == spec.model_dump(
            mode="json"
        )
    except (yaml.YAMLError, ValidationError):
        return False


def every(storage: Storage) -> list[Run]:
    """All runs, newest first."""
    names = [found for name in storage.objects.children("runs") if (found := NAME.fullmatch(name))]
    names.sort(key=lambda found: found["time"], reverse=True)
    return [Run(found[0], storage) for found in names]


def find(storage: Storage, identity: str | None) -> Run:
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
