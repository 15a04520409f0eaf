"""A folder's manifest: the SHA-256 of every file, written last and checked before every load."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from jobs.errors import CheckpointError

MANIFEST = "manifest.json"
MODEL_DIR = "model"
"""Folder inside a checkpoint that transformers loads as it is."""


def write(folder: Path, details: dict[str, Any]) -> dict[str, str]:
    """Hash every file, write the manifest with `details` last, and flush all of it to disk."""
    files = {str(path.relative_to(folder)): sha256(path) for path in _files(folder)}
    path = folder / MANIFEST
    path.write_text(json.dumps({"files": files, **details}, indent=2), encoding="utf-8")
    for written in (*_files(folder), path):
        with written.open("rb") as handle:
            os.fsync(handle.fileno())
    return files


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, its files not looked at; CheckpointError without a readable one."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        manifest["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{folder} has no readable {MANIFEST}, so it is not whole") from None
    return manifest


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are all there and unaltered, else CheckpointError."""
    manifest = read(folder)
    for name, digest in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing")
        if sha256(path) != digest:
            raise CheckpointError(f"{path} was altered: its SHA-256 is not the manifest's")
    return manifest


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
