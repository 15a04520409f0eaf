"""A folder's manifest: the SHA-256 of every file, written last and checked before every load.

It carries one of its own too, so that no step, metric or label in it can change unseen.
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
"""Key of the manifest's own hash, over all else in it."""
WHOLE, ENDS = 256 * 2**20, 2**20
"""Bytes of a file up to which `identity` reads all of it, and of each end of a larger one."""
MODEL_DIR = "model"
"""Folder inside a checkpoint that transformers loads as it is."""


def write(folder: Path, details: dict[str, Any]) -> dict[str, str]:
    """Hash every file, write the manifest with `details` last, and flush all of it to disk."""
    hashes = {str(path.relative_to(folder)): sha256(path) for path in _files(folder)}
    path = folder / MANIFEST
    values = {"files": hashes, **details}
    text = json.dumps({OWN: _own(values), **values}, indent=2)
    path.write_text(text, encoding="utf-8")
    flush(folder)
    return hashes


def flush(folder: Path) -> None:
    """Wait until a folder and everything in it is on the disk."""
    for path in (*folder.rglob("*"), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, its files not looked at; CheckpointError without a readable one."""
    try:
        content = (folder / MANIFEST).read_bytes()
    except OSError:
        raise CheckpointError(f"{folder} has no readable {MANIFEST}, so it is not whole") from None
    return parse(content, str(folder))


def parse(content: bytes, place: str) -> dict[str, Any]:
    """A manifest's content; CheckpointError when it is none, or names files outside its folder."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        own = manifest.pop(OWN)
        names = [Path(name) for name in dict(manifest["files"])]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{place} has no readable {MANIFEST}, so it is not whole") from None
    if own != _own(manifest):
        raise CheckpointError(f"{place}/{MANIFEST} was altered: its SHA-256 is another one")
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise CheckpointError(f"{place}/{MANIFEST} names {str(name)!r}, outside its folder")
    return manifest


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are all there and unaltered, else CheckpointError."""
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
    """Hex digest of a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def identity(path: Path) -> str:
    """Returns what tells a file's content from another: of a large file, size, start and end.

    Cheaper than `sha256` for files above WHOLE bytes; raises OSError.
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
