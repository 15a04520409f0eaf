"""A folder's manifest: the SHA-256 of every file, written last and checked before every load.

The manifest holds its own SHA-256 too, so that a changed step, metric or label is detected.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from jobs.errors import CheckpointError
from jobs.storage import files

MANIFEST = "manifest.json"
OWN = "sha256"
"""Key of the manifest's own hash, over all its other values."""
WHOLE, ENDS = 256 * 2**20, 2**20
"""Bytes: `identity` reads files up to WHOLE completely, and ENDS of each end of larger files."""
MODEL_DIR = "model"
"""Folder of a checkpoint that transformers can load."""


def write(folder: Path, details: dict[str, Any]) -> dict[str, str]:
    """Writes the manifest of a folder, with `details`, and flushes everything to the disk.

    Returns the SHA-256 of each file by its path in the folder.
    """
    hashes = {str(path.relative_to(folder)): sha256(path) for path in _files(folder)}
    path = folder / MANIFEST
    values = {"files": hashes, **details}
    text = json.dumps({OWN: _own(values), **values}, indent=2)
    path.write_text(text, encoding="utf-8")
    flush(folder)
    return hashes


def flush(folder: Path) -> None:
    """Flushes a folder and everything in it to the disk."""
    for path in (*folder.rglob("*"), folder):
        files.flush(path)


def read(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a folder without checking the folder's files.

    Raises:
        CheckpointError: if there is no readable manifest.
    """
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError:
        raise CheckpointError(f"{folder} has no readable {MANIFEST}, so it is incomplete") from None
    return parse(content, str(folder))


def parse(content: bytes, place: str) -> dict[str, Any]:
    """Parses the JSON text of a manifest; `place` stands for its folder in errors.

    Raises:
        CheckpointError: if it is not a manifest, its own hash differs, or it names files outside
            its folder.
    """
    try:
        manifest: dict[str, Any] = json.loads(content)
        own = manifest.pop(OWN)
        names = [Path(name) for name in dict(manifest["files"])]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{place} has no readable {MANIFEST}, so it is incomplete") from None
    if own != _own(manifest):
        raise CheckpointError(f"{place}/{MANIFEST} was altered: its SHA-256 does not match")
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise CheckpointError(f"{place}/{MANIFEST} names {str(name)!r}, outside its folder")
    return manifest


def verify(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a folder after checking the hash of every file in it.

    Raises:
        CheckpointError: if a file is missing or was altered.
        StorageError: if a file cannot be read.
    """
    manifest = read(folder)
    for name, digest in manifest["files"].items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise CheckpointError(f"{path} is missing")
        try:
            found = sha256(path)
        except OSError as error:
            raise files.failed(path, "read", error) from None
        if found != digest:
            raise CheckpointError(f"{path} was altered: its SHA-256 is not the manifest's")
    return manifest


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def identity(path: Path) -> str:
    """Returns a string that changes with a file's content, cheaply also for large files.

    It is the SHA-256 of files up to WHOLE bytes; for larger files, the size and the SHA-256 of
    both ends.

    Raises:
        OSError: if the file cannot be read.
    """
    size = path.stat().st_size
    if size <= WHOLE:
        return sha256(path)
    with path.open("rb") as handle:
        begin = handle.read(ENDS)
        handle.seek(-ENDS, os.SEEK_END)
        ends = begin + handle.read(ENDS)
    return f"{size}/{hashlib.sha256(ends).hexdigest()}"


def _own(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
