"""Keys and their content in a folder, which several machines may share."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import filelock

from jobs.errors import CheckpointError, StorageError
from jobs.storage import files, manifest
from jobs.storage.objects import Entry, Found, checked

LOCKS = ".locks"
"""Folder of lock files; the operating system releases the locks of a killed process."""
LOCK_TIMEOUT_S = 60.0


class LocalObjects:
    """The files of a folder; implements `Objects`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self.folder)

    def read(self, key: str) -> Found | None:
        """Returns the content of a key with its SHA-256, or None if the key does not exist."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise files.failed(path, "read", error) from None
        return Found(content, hashlib.sha256(content).hexdigest())

    def write(self, key: str, content: bytes) -> None:
        """Writes the content of a key and overwrites any earlier content."""
        files.write_atomically(self._path(key), content)

    def swap(self, key: str, content: bytes, tag: str | None) -> str | None:
        """Compares and writes while holding the key's lock."""
        with self._locked(key):
            found = self.read(key)
            if (found.tag if found else None) != tag:
                return None
            self.write(key, content)
        return hashlib.sha256(content).hexdigest()

    def append(self, key: str, line: bytes) -> None:
        """Adds a line and flushes it to the disk before it returns."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            with path.open("a+b", buffering=0) as handle:
                end = handle.seek(0, os.SEEK_END)
                if end:
                    handle.seek(end - 1)
                    if handle.read(1) != b"\n":
                        line = b"\n" + line
                while line:  # a full disk accepts a part, and refuses the next write
                    line = line[handle.write(line) :]
                os.fsync(handle.fileno())
            if is_new:
                files.flush(path.parent)
        except OSError as error:
            raise files.failed(path, "written", error) from None

    def delete(self, key: str) -> None:
        """Deletes a key; a key that does not exist is no error."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise files.failed(path, "deleted", error) from None

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yields the keys below a prefix, without unfinished files and locks."""
        place = self._path(prefix) if prefix else self.folder
        for path in sorted(files.inside(place)):
            key = path.relative_to(self.folder)
            if any(_is_hidden(part) for part in key.parts):
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                details = path.lstat()
                if path.is_file():
                    modified = datetime.fromtimestamp(details.st_mtime, UTC)
                    yield Entry(key.as_posix(), details.st_size, modified)

    def children(self, prefix: str) -> list[str]:
        """Returns the names of the folders directly below a prefix."""
        place = self._path(prefix) if prefix else self.folder
        return sorted(p.name for p in place.glob("*") if p.is_dir() and not _is_hidden(p.name))

    def put_folder(self, key: str, folder: Path) -> None:
        """Moves a folder into the storage; copies it first if it is on another disk."""
        final = self._path(key)
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            if folder.stat().st_dev != final.parent.stat().st_dev:
                beside = files.partial_of(final)
                shutil.copytree(folder, beside)
                manifest.flush(beside)
                folder = beside
            if final.exists():
                self._replace(folder, final)
            else:
                folder.rename(final)
            files.flush(final.parent)
        except OSError as error:
            raise files.failed(final, "written", error) from None

    def get_folder(self, key: str) -> Path:
        """Returns the folder itself, after checking its hashes."""
        path = self._path(key)
        if not path.is_dir():
            raise CheckpointError(f"{path} does not exist")
        manifest.verify(path)
        return path

    def delete_folder(self, key: str) -> None:
        """Renames a folder before deleting it, so that no reader sees a part of it."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path.rename(files.partial_of(path)))

    def _replace(self, folder: Path, final: Path) -> None:
        """Replaces a folder, or keeps it if it is complete and has the same files."""
        with self._locked(str(final.relative_to(self.folder))):
            with contextlib.suppress(CheckpointError):
                if manifest.verify(final)["files"] == manifest.read(folder)["files"]:
                    shutil.rmtree(folder)
                    return
            old = files.partial_of(final)
            final.rename(old)
            folder.rename(final)
            shutil.rmtree(old, ignore_errors=True)

    def _path(self, key: str) -> Path:
        return self.folder / checked(key)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        place = self.folder / LOCKS / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(place, timeout=LOCK_TIMEOUT_S):
                yield
        except filelock.Timeout:
            raise StorageError(
                f"{self.folder / key} is locked by another process for over {LOCK_TIMEOUT_S:.0f} s"
            ) from None
        except OSError as error:
            raise files.failed(self.folder / key, "locked", error) from None


def _is_hidden(name: str) -> bool:
    return name == LOCKS or name.startswith(files.PARTIAL)
