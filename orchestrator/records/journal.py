"""Lines that outlive a loss of power: appended, flushed, each with its own checksum.

A line is JSON, `{"v":1,"crc":"0f5a…","value":…}`; the checksum is that of the version and the value
as they are written. What was torn or altered is left out and counted, what stands after it is not.
Lines without a checksum, as they were written before there was one, are taken as they are.
"""

import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import RunError

VERSION = 1
LINE = re.compile(rb'\{"v":(\d+),"crc":"([0-9a-f]{8})","value":(.*)\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lines:
    """What a journal holds."""

    values: tuple[bytes, ...]
    """JSON of every whole line, in order."""
    damaged: tuple[int, ...] = ()
    """Numbers of lines that were altered, from 1; a torn last line is not among them."""


def append(path: Path, value: bytes) -> None:
    """Add a line of JSON and wait until it is on the disk.

    Raises RunError where it cannot be written; what was there before stays readable.
    """
    line = b'{"v":%d,"crc":"%08x","value":%s}\n' % (VERSION, _checksum(VERSION, value), value)
    try:
        is_new = not path.exists()
        with path.open("a+b") as handle:
            end = handle.seek(0, os.SEEK_END)
            if end:
                handle.seek(end - 1)
                if handle.read(1) != b"\n":  # a torn line, which must not take this one along
                    line = b"\n" + line
            handle.write(line)
            handle.flush()
            os.fsync(handle.fileno())
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None


def read(path: Path) -> Lines:
    """Every whole line; none where there is no file. RunError for lines of a newer format."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Lines(())
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    values, damaged = [], []
    whole, _, tail = content.rpartition(b"\n")
    for number, line in enumerate([*whole.split(b"\n"), tail], start=1):
        if not line:
            continue
        value = _value(line, path)
        if value is not None:
            values.append(value)
        elif line is not tail:
            damaged.append(number)
    return Lines(tuple(values), tuple(damaged))


def sync_folder(folder: Path) -> None:
    """Wait until a folder's new names are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _value(line: bytes, path: Path) -> bytes | None:
    """None for a line that was torn or altered."""
    found = LINE.fullmatch(line)
    if found is None:
        return line if _is_old(line) else None
    version, checksum, value = int(found[1]), int(found[2], 16), found[3]
    if _checksum(version, value) != checksum:
        return None
    if version > VERSION:
        raise RunError(f"{path} was written by a newer Winnow (format {version}); update this one")
    return value


def _is_old(line: bytes) -> bool:
    """Whether a line is from before there were checksums, and none whose wrapping was altered."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and not value.keys() & {"v", "crc", "value"}


def _checksum(version: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d" % version))
