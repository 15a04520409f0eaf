"""Tokenised rows on disk: an Arrow file for each combination of content, tokenizer and settings."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.storage import cache, files

FORMAT = 5
"""Version of the file format; part of each file's name."""


def table(key: dict[str, Any], make: Callable[[], pa.Table]) -> pa.Table:
    """Returns the memory-mapped table of a key, and makes it first if it is missing.

    One process of a machine makes the table while the others wait.
    """
    path = _path(key)
    with cache.holding(path):
        try:
            return _read(path)
        except (OSError, pa.ArrowInvalid):  # missing, or cut off by a full disk
            _write(path, make())
        return _read(path)


def find(key: dict[str, Any]) -> pa.Table | None:
    """Returns the memory-mapped table of a key; None if it is missing."""
    try:
        return _read(_path(key))
    except (OSError, pa.ArrowInvalid):
        return None


def _path(key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest()
    return cache.tokenised() / f"{digest[:32]}.arrow"


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _write(path: Path, made: pa.Table) -> None:
    with (
        files.replacing(path) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, made.schema) as writer,
    ):
        writer.write_table(made.combine_chunks())
