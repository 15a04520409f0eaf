"""Journals: files of JSON lines, each with a checksum, that survive a loss of power.

A line is `{"v":1,"crc":"0f5a…","value":…}`; `crc` is the CRC-32 of version and value as written.
Readers skip and count torn or altered lines, and read the lines after them. Lines without a
checksum, from older releases, are accepted.
"""

import json
import re
import zlib
from dataclasses import dataclass

from jobs.errors import RunError
from jobs.storage.objects import Objects

VERSION = 1
LINE = re.compile(rb'\{"v":(\d+),"crc":"([0-9a-f]{8})","value":(.*)\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lines:
    """The content of a journal."""

    values: tuple[bytes, ...]
    """JSON value of every intact line, in order."""
    damaged: tuple[int, ...] = ()
    """Numbers of altered lines, from 1; a torn last line is not among them."""


def append(objects: Objects, key: str, value: bytes) -> None:
    """Append a line with a JSON value, and wait until it is on disk.

    Raises:
        StorageError: if it cannot be written; earlier lines stay readable.
    """
    checksum = _checksum(VERSION, value)
    objects.append(key, b'{"v":%d,"crc":"%08x","value":%s}\n' % (VERSION, checksum, value))


def read(objects: Objects, key: str) -> Lines:
    """Read every intact line; none if the file does not exist.

    Raises:
        RunError: for a line of a newer format.
    """
    found = objects.read(key)
    if found is None:
        return Lines(())
    values, damaged = [], []
    whole, _, tail = found.content.rpartition(b"\n")
    for number, line in enumerate([*whole.split(b"\n"), tail], start=1):
        if not line:
            continue
        value = _value(line, key)
        if value is not None:
            values.append(value)
        elif line is not tail:
            damaged.append(number)
    return Lines(tuple(values), tuple(damaged))


def _value(line: bytes, key: str) -> bytes | None:
    """Returns the JSON value of a line; None for a torn or altered line."""
    found = LINE.fullmatch(line)
    if found is None:
        return line if _is_old(line) else None
    version, checksum, value = int(found[1]), int(found[2], 16), found[3]
    if _checksum(version, value) != checksum:
        return None
    if version > VERSION:
        raise RunError(f"{key} was written by a newer Winnow (format {version}); update this one")
    return value


def _is_old(line: bytes) -> bool:
    """Returns whether a line is of the format without checksums, and not an altered new line."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and not value.keys() & {"v", "crc", "value"}


def _checksum(version: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d" % version))
