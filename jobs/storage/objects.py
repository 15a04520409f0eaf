"""The interface of a storage, which folders and buckets implement."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from jobs.errors import StorageError


@dataclass(frozen=True, slots=True)
class Found:
    """The content of a key."""

    content: bytes
    tag: str
    """Changes with the content; pass it to `swap`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key that exists, as a listing shows it."""

    key: str
    size: int
    """Bytes."""
    modified: datetime


class Objects(Protocol):
    """Reads and writes content under keys, which are relative paths with `/`.

    Raises:
        StorageError: by every method, if the storage refuses or cannot be reached.
    """

    @property
    def url(self) -> str:
        """The folder's path, or `s3://bucket/prefix`."""
        ...

    def read(self, key: str) -> Found | None:
        """Returns the content of a key, or None if the key does not exist."""
        ...

    def write(self, key: str, content: bytes) -> None:
        """Writes the content of a key, completely or not at all; overwrites earlier content."""
        ...

    def swap(self, key: str, content: bytes, tag: str | None) -> str | None:
        """Writes the content of a key if the key still has the given tag; returns the new tag.

        A tag of None stands for a key that does not exist. Returns None, and writes nothing, if
        the key has another tag. It also returns None if the write succeeded, its response was lost
        and another writer has replaced the content since; a caller that must know puts a name of
        its own into the content and reads it back.
        """
        ...

    def append(self, key: str, line: bytes) -> None:
        """Adds a line, which must end with a newline; earlier lines stay readable.

        If the last line was cut off by a crash, the new line still starts on its own.
        """
        ...

    def delete(self, key: str) -> None:
        """Deletes a key; a key that does not exist is no error."""
        ...

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yields the keys below a prefix, sorted."""
        ...

    def children(self, prefix: str) -> list[str]:
        """Returns the names of the folders directly below a prefix, sorted."""
        ...

    def put_folder(self, key: str, folder: Path) -> None:
        """Stores a folder that has a manifest, completely or not at all; replaces an earlier one.

        The folder is moved if the storage is on the same disk, else copied.
        """
        ...

    def get_folder(self, key: str) -> Path:
        """Returns a folder on this machine with the stored files, after checking their hashes.

        Raises:
            CheckpointError: if the folder is missing, incomplete or altered.
        """
        ...

    def delete_folder(self, key: str) -> None:
        """Deletes a folder so that no reader takes a part of it for the whole."""
        ...


def checked(key: str) -> str:
    """Returns the key, after checking that it stays inside the storage.

    Raises:
        StorageError: if a part of the key is empty, `.` or `..`, or holds a null character.
    """
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(
            f"{key!r} is not a key; write a relative path without empty parts, `.` and `..`"
        )
    return key
