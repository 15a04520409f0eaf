"""Lines that outlive a loss of power: appended, flushed, each with its own checksum.

A line is JSON, `{"v":1,"crc":"0f5a…","value":…}`; the checksum is that of the version and the value
as they are written. What was torn or altered is left out and counted, what stands after it is not.
Lines without a checksum, as they were written before there was one, are taken as they are.
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
    """What a journal holds."""

    values: tuple[bytes, ...]
    """JSON of every whole line, in order."""
    damaged: tuple[int, ...] = ()
    """Numbers of lines that were altered, from 1; a torn last line is not among them."""


def append(objects: Objects, key: str, value: bytes) -> None:
    """Add a line of JSON and wait until it is kept.

    Raises StorageError where it cannot be written; what was there before stays readable.
    """
    checksum = _checksum(VERSION, value)
    objects.append(key, b'{"v":%d,"crc":"%08x","value":%s}\n' % (VERSION, checksum, value))


def read(objects: Objects, key: str) -> Lines:
    """Every whole line; none where there is no file. RunError for lines of a newer format."""
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
    """None for a line that was torn or altered."""
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
    """Whether a line is from before there were checksums, and none whose wrapping was altered."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and not value.keys() & {"v", "crc", "value"}


def _checksum(version: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d" % version))
