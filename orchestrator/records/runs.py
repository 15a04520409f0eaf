"""Runs in a storage: a folder with one file for each finished stage, and a journal of events."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from jobs.errors import RunError
from jobs.loader import variables
from jobs.spec import JobSpec
from jobs.storage.files import write_atomically
from jobs.storage.storage import Storage
from orchestrator.records import journal

Value = TypeVar("Value")
Notes = Sequence[Mapping[str, str]]
"""Events of a run's journal."""

JOURNAL = "journal.jsonl"
SPEC_FILE = "job.yaml"
"""The job as it was run, with defaults and absolute paths."""
WINNER = "winner.yaml"
"""The job that its sweep chose, as a file that can be run as it is."""
STAGES = ("inventory", "plan", "winner", "fit", "harness", "receipt", "model", "endpoint", "upload")
"""Stages with one result, in order."""
ENDS = ("completed", "failed", "interrupted")
"""Events that end a run's journal until the run goes on."""
AROUND = {"priority", "owner", "publish"}
"""Fields that change nothing of what a job computes; with other ones it is the same job."""
NAME = re.compile(r"(?P<job>[a-z0-9-]+)-(?P<time>\d{8}-\d{6})-(?P<digest>[0-9a-f]{6})")
"""Name of a run's folder."""


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Returns the reader of a type, which takes milliseconds to build."""
    return TypeAdapter(kind)


def _parsed(content: bytes, kind: type[Value]) -> Value:
    """Returns the value in a JSON text; raises ValidationError if it is of another form."""
    value: Value = _adapter(kind).validate_json(content)  # type: ignore[arg-type]  # is hashable
    return value


def _no_lease() -> None:
    """Check nothing: the run is not leased."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a job, and its files in the storage."""

    id: str
    storage: Storage
    check: Callable[[], None] = field(default=_no_lease, compare=False)
    """Called before each write; raises RunError if another process may own the run."""

    @property
    def folder(self) -> Path:
        """Folder on this machine: the run's files, or a working folder if they are in a bucket."""
        return self.storage.folder / "runs" / self.id

    @property
    def url(self) -> str:
        """Path or S3 URL of the run's files."""
        return f"{self.storage.url}/runs/{self.id}"

    def keep(self, name: str, content: bytes) -> str:
        """Write a file atomically; returns its path or URL."""
        self.check()
        self.storage.objects.write(f"runs/{self.id}/{name}", content)
        return f"{self.url}/{name}"

    def kept(self, name: str) -> bytes | None:
        """Returns a file's content; None if it does not exist."""
        found = self.storage.objects.read(f"runs/{self.id}/{name}")
        return found.content if found else None

    def local_copy(self, name: str) -> Path:
        """Returns the path of a local copy of a file.

        Raises:
            RunError: if the file does not exist.
        """
        path, content = self.folder / name, self.kept(name)
        if content is None:
            raise RunError(f"{self.url}/{name} does not exist; start a new run")
        if self.storage.is_bucket:
            write_atomically(path, content)
        return path

    def stage(self, name: str, kind: type[Value], make: Callable[[], Value]) -> Value:
        """Returns the recorded value of a stage; if there is none, records what `make` returns."""
        recorded = self.read(name, kind)
        if recorded is not None:
            return recorded
        value = make()
        self.write(name, value)
        return value

    def write(self, name: str, value: object) -> None:
        """Record a stage's value atomically, and that the stage has finished."""
        self.revise(name, value)
        self.note("finished", stage=name)

    def revise(self, name: str, value: object) -> None:
        """Record another value of a stage that has finished."""
        self.keep(f"{name}.json", TypeAdapter(type(value)).dump_json(value, indent=2))

    def read(self, name: str, kind: type[Value]) -> Value | None:
        """Returns the recorded value of a stage; None if it has not finished.

        Raises:
            RunError: if the record is damaged.
        """
        content = self.kept(f"{name}.json")
        if content is None:
            return None
        try:
            return _parsed(content, kind)
        except ValidationError:
            raise RunError(
                f"{self.url}/{name}.json is damaged and cannot be read; start a new run"
            ) from None

    def value(self, name: str, kind: type[Value]) -> Value:
        """The recorded value of a stage; RunError before it finished."""
        found = self.read(name, kind)
        if found is None:
            raise RunError(f"{self.url} has no {name} yet; resume the run")
        return found

    def append(self, name: str, value: object) -> None:
        """Record one of a stage's many values."""
        self._append(f"{name}.jsonl", TypeAdapter(type(value)).dump_json(value))

    def read_all(self, name: str, kind: type[Value]) -> tuple[Value, ...]:
        """Returns the values recorded by `append`; damaged ones are skipped and noted."""
        values, damaged = self._intact(name, kind)
        if damaged:
            self.note("damaged", file=f"{name}.jsonl", lines=str(damaged))
        return values

    def intact(self, name: str, kind: type[Value]) -> tuple[Value, ...]:
        """Returns the same as `read_all` and notes nothing, for those who only look at a run."""
        return self._intact(name, kind)[0]

    def _intact(self, name: str, kind: type[Value]) -> tuple[tuple[Value, ...], int]:
        """Returns the values that can be read, and the number of damaged lines."""
        lines = journal.read(self.storage.objects, f"runs/{self.id}/{name}.jsonl")
        values, damaged = list[Value](), len(lines.damaged)
        for line in lines.values:
            try:
                values.append(_parsed(line, kind))
            except ValidationError:
                damaged += 1
        return tuple(values), damaged

    def note(self, event: str, **details: str) -> None:
        """Add an event to the journal."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append(JOURNAL, json.dumps({"time": now, "event": event, **details}).encode())

    @property
    def notes(self) -> tuple[dict[str, str], ...]:
        """The journal's events."""
        lines = journal.read(self.storage.objects, f"runs/{self.id}/{JOURNAL}")
        return tuple(json.loads(line) for line in lines.values)

    @property
    def created(self) -> tuple[str, str]:
        """Time in ISO 8601 and user of the run's creation; empty where they are not known."""
        note = next((note for note in self.notes if note["event"] == "created"), {})
        return note.get("time", ""), note.get("by", "")

    def _append(self, name: str, value: bytes) -> None:
        self.check()
        journal.append(self.storage.objects, f"runs/{self.id}/{name}", value)


def create(storage: Storage, spec: JobSpec, now: datetime, by: str = "") -> Run:
    """Create a run; `by` names who creates it, such as alice@laptop.

    Raises:
        RunError: if a run of the same job and second exists.
        StorageError: if the storage cannot be written.
    """
    identity = f"{spec.name}-{now:%Y%m%d-%H%M%S}-{digest(spec)[:6]}"
    run = Run(identity, storage)
    place = f"runs/{identity}/{SPEC_FILE}"
    if storage.objects.swap(place, to_yaml(spec).encode(), None) is None:
        raise RunError(f"run {identity} exists already; wait a second or use --resume")
    run.note("created", digest=digest(spec), **({"by": by} if by else {}))
    return run


def job_name(identity: str) -> str:
    """Returns the name of the job in a run's id."""
    found = NAME.fullmatch(identity)
    return found["job"] if found else identity


def lease_key(spec: JobSpec) -> str:
    """Returns the key of the lease that every process holds while it works on the job."""
    return _lease_key(spec.name, digest(spec))


def lease_key_of(run: Run, notes: Notes) -> str | None:
    """Returns the key of the lease under which a run was last worked on; None if none is noted."""
    for note in reversed(notes):
        if note["event"] == "owned" and "lease" in note:
            return note["lease"]
        if note["event"] == "created":  # by an older release
            return _lease_key(job_name(run.id), note["digest"])
    return None


def _lease_key(name: str, hex_digest: str) -> str:
    return f"leases/{name}-{hex_digest[:12]}"


def finished_stages(notes: Notes) -> tuple[str, ...]:
    """Returns the names of the stages that have a result, by a run's journal."""
    done = {note["stage"] for note in notes if note["event"] == "finished"}
    return tuple(stage for stage in STAGES if stage in done)


def state_of(notes: Notes) -> str:
    """Returns how a run ended, by its journal: one of ENDS, or `not ended`."""
    last = notes[-1]["event"] if notes else ""
    return last if last in ENDS else "not ended"


def newest_of(storage: Storage, spec: JobSpec) -> Run | None:
    """Returns the newest run of exactly this job, whichever release wrote it, or None."""
    runs = (run for run in every(storage) if run.id.startswith(f"{spec.name}-"))
    return next((run for run in runs if is_of(run, spec)), None)


def is_of(run: Run, spec: JobSpec) -> bool:
    """Whether a run began with exactly this job, with today's defaults where it names none.

    Digests would not do: a field that a later release adds changes them.
    """
    try:
        began = JobSpec.model_validate(yaml.safe_load(run.kept(SPEC_FILE) or b""))
        return _content(began) == _content(spec)
    except (yaml.YAMLError, ValidationError):
        return False


def every(storage: Storage) -> list[Run]:
    """Returns all runs, newest first."""
    names = [found for name in storage.objects.children("runs") if (found := NAME.fullmatch(name))]
    names.sort(key=lambda found: found["time"], reverse=True)
    return [Run(found[0], storage) for found in names]


def find(storage: Storage, identity: str | None) -> Run:
    """Returns a run by id, or the newest one.

    Raises:
        RunError: if it does not exist.
    """
    runs = every(storage)
    for run in runs:
        if identity in (None, run.id):
            return run
    known = f"; newest is {runs[0].id}" if runs else ""
    what = f"run {identity!r} is not" if identity else "no run is"
    raise RunError(f"{what} in {storage}{known}")


def digest(spec: JobSpec) -> str:
    """Returns a hex digest of the whole job."""
    return hashlib.sha256(spec.model_dump_json(exclude=AROUND).encode()).hexdigest()


def _content(spec: JobSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude=AROUND)


def to_yaml(spec: JobSpec) -> str:
    """Returns the job as YAML; fields that were not set are left out."""
    values: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def to_job_file(spec: JobSpec) -> str:
    """Returns the job as a file that can be run, in which no text is taken for a variable."""
    return variables.escaped(to_yaml(spec))
