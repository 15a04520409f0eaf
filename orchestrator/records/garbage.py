"""Finds files that can be deleted: unfinished files and uploads, Ray's folders, cached copies."""

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jobs.storage import cache, files, manifest
from jobs.storage.bucket import BucketObjects
from jobs.storage.files import PARTIAL
from jobs.storage.objects import Entry
from jobs.storage.storage import Storage
from orchestrator.records import runs

FOLDERS = ("runs", "models", "measurements", "leases")
"""Winnow's folders in a storage."""
RAY_FOLDERS = ("ray", "fit/ray")
"""Folders of a run that Ray Train and Ray Tune write, and that Winnow never reads."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file, folder or upload that is never read again, or can be fetched again."""

    place: str
    """Key in the storage, or absolute path on this machine."""
    why: str
    size: int
    """Bytes; 0 if unknown."""
    modified: datetime | None
    upload: str | None = None
    """Id of an unfinished multipart upload."""


def find(storage: Storage, before: datetime) -> list[Garbage]:
    """Returns the garbage of a storage and of this machine's cache, last modified before a time."""
    found = [*_on_disk(storage), *_half_folders(storage), *_uploads(storage), *_copies()]
    return [item for item in found if item.modified is None or item.modified < before]


def delete(storage: Storage, garbage: Garbage) -> None:
    """Delete one item, if it still exists."""
    if garbage.upload and isinstance(storage.objects, BucketObjects):
        storage.objects.abort_upload(garbage.place, garbage.upload)
    elif Path(garbage.place).is_absolute():
        path = Path(garbage.place)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    else:
        storage.objects.delete_folder(garbage.place)


def _on_disk(storage: Storage) -> Iterator[Garbage]:
    for folder in FOLDERS:  # only these, because the storage may contain foreign files
        for path in sorted(files.inside(storage.folder / folder)):
            if path.name.startswith(PARTIAL):
                yield from _file(path, "was never finished")
    for run in runs.every(storage):
        if runs.state_of(run.notes) == "completed":  # it may go on, such as from sweep to training
            for name in RAY_FOLDERS:
                if (run.folder / name).is_dir():
                    yield from _file(run.folder / name, "Ray's files of a completed run")


def _file(path: Path, why: str) -> Iterator[Garbage]:
    with contextlib.suppress(FileNotFoundError):  # its writer has just finished and renamed it
        newest = max(each.lstat().st_mtime for each in (path, *files.inside(path)))
        modified = datetime.fromtimestamp(newest).astimezone()
        yield Garbage(str(path), why, files.size_of(path), modified)


def _half_folders(storage: Storage) -> Iterator[Garbage]:
    """Yields versions and checkpoints without a manifest."""
    places = [f"models/{name}" for name in storage.objects.children("models")]
    places += [f"runs/{run.id}/fit/checkpoints" for run in runs.every(storage)]
    for place in places:
        inside: dict[str, list[Entry]] = defaultdict(list)
        for entry in storage.objects.entries(place):
            name, _, rest = entry.key.removeprefix(f"{place}/").partition("/")
            if rest and not name.startswith("."):
                inside[f"{place}/{name}"].append(entry)
        for folder, entries in inside.items():
            if f"{folder}/{manifest.MANIFEST}" not in {entry.key for entry in entries}:
                size, newest = sum(e.size for e in entries), max(e.modified for e in entries)
                yield Garbage(folder, "an incomplete upload: it has no manifest", size, newest)


def _uploads(storage: Storage) -> Iterator[Garbage]:
    if isinstance(storage.objects, BucketObjects):
        for key, identity, began in storage.objects.unfinished_uploads():
            yield Garbage(key, "an unfinished multipart upload", 0, began, identity)


def _copies() -> Iterator[Garbage]:
    """Yields this machine's cached downloads from buckets and tokenised rows."""
    for path in sorted(cache.every()):
        yield from _file(path, "a cached copy that was not used")
