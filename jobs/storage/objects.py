"""Named content: what a folder and a bucket both can do."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from jobs.errors import StorageError


@dataclass(frozen=True, slots=True)
class Found:
    """What a key holds."""

    content: bytes
    tag: str
    """Changes with the content."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key that is there."""

    key: str
    size: int
    """Bytes."""
    modified: datetime


class Objects(Protocol):
    """Keys are relative paths with `/`. Every method raises StorageError when it cannot be done."""

    @property
    def url(self) -> str:
        """The folder's path, or `s3://bucket/prefix`."""
        ...

    def read(self, key: str) -> Found | None:
        """None where nothing is."""
        ...

    def write(self, key: str, content: bytes) -> None:
        """Put content there, whole or not at all, whatever was there."""
        ...

    def swap(self, key: str, content: bytes, tag: str | None) -> str | None:
        """Put content there if what is there still has this tag, None for nothing; the new tag.

        None where something else is there. A write whose answer was lost may have been seen and
        replaced by others meanwhile: who writes a name of its own into the content can look.
        """
        ...

    def append(self, key: str, line: bytes) -> None:
        """Add a line, which ends with a newline; what was there before stays readable.

        A torn line before it does not take it along.
        """
        ...

    def delete(self, key: str) -> None:
        """Nothing happens where nothing is."""
        ...

    def entries(self, prefix: str) -> Iterator[Entry]:
        """What is below a prefix, in order of the keys."""
        ...

    def children(self, prefix: str) -> list[str]:
        """First parts of the names below a prefix that have several."""
        ...

    def put_folder(self, key: str, folder: Path) -> None:
        """Keep a folder with a manifest, whole or not at all; one of the same name is replaced.

        A folder on the same disk is moved; elsewhere it stays.
        """
        ...

    def get_folder(self, key: str) -> Path:
        """A folder on this machine with what was kept, its hashes checked.

        Raises CheckpointError when it is missing, torn or altered.
        """
        ...

    def delete_folder(self, key: str) -> None:
        """The manifest goes first, so that no half is taken for the whole."""
        ...


def checked(key: str) -> str:
    """The key, if it names something below the storage and nothing else."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(f"{key!r} is no name that can be kept")
    return key
