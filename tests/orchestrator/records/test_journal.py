"""Journals: torn and altered lines cost themselves alone, and are told."""

import json
import random
import zlib
from pathlib import Path

import pytest

from jobs.errors import RunError, StorageError
from jobs.storage import local
from jobs.storage.local import LocalObjects
from orchestrator.records import journal

VALUES = [
    json.dumps({"candidate": f"T4:1/{n}", "text": "ü\\n" * (n % 5)}).encode() for n in range(12)
]


KEY = "measurements.jsonl"


def written(folder: Path) -> Path:
    """A journal of twelve lines."""
    for value in VALUES:
        journal.append(LocalObjects(folder), KEY, value)
    return folder / KEY


def test_lines_come_back_in_order_and_are_json(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert journal.read(LocalObjects(tmp_path), path.name) == journal.Lines(tuple(VALUES))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["value"] for line in lines] == [json.loads(value) for value in VALUES]
    assert journal.read(LocalObjects(tmp_path), "nothing") == journal.Lines(())


def test_two_thousand_damaged_journals_lose_what_was_damaged_and_nothing_else(
    tmp_path: Path,
) -> None:
    whole = written(tmp_path).read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(whole) if byte == 10)]
    path, draw = tmp_path / "damaged.jsonl", random.Random(7)
    for case in range(2000):
        content = bytearray(whole)
        if case % 2:
            cut = draw.randrange(len(whole) + 1)
            del content[cut:]
            touched = {sum(start <= cut for start in starts) - 1} if cut < len(whole) else set()
            kept = [v for n, v in enumerate(VALUES) if starts[n + 1] - 1 <= cut]
        else:
            touched = set()
            for _ in range(draw.randint(1, 3)):
                place = draw.randrange(len(whole))
                content[place] ^= 1 << draw.randrange(8)
                row = sum(start <= place for start in starts) - 1
                touched |= {row, row + 1} if whole[place] == 10 else {row}
            kept = [v for n, v in enumerate(VALUES) if n not in touched]
        path.write_bytes(content)
        found = journal.read(LocalObjects(tmp_path), path.name)
        assert set(kept) <= set(found.values) <= set(VALUES)
        if len(found.values) < len(VALUES) and not case % 2:
            lost_last_alone = found.values == tuple(VALUES[:-1]) and content[-1:] != b"\n"
            assert found.damaged or lost_last_alone
        journal.append(LocalObjects(tmp_path), path.name, b'{"after": 1}')
        assert journal.read(LocalObjects(tmp_path), path.name).values == (
            *found.values,
            b'{"after": 1}',
        )


def test_lines_from_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(b'{"candidate": "a"}\n{"candidate": "b"}\n')
    journal.append(LocalObjects(tmp_path), path.name, b'{"candidate": "c"}')
    values = journal.read(LocalObjects(tmp_path), path.name).values
    assert [json.loads(value)["candidate"] for value in values] == ["a", "b", "c"]


def test_a_newer_format_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    value = b'{"a": 1}'
    checksum = zlib.crc32(value, zlib.crc32(b"2"))
    path.write_bytes(b'{"v":2,"crc":"%08x","value":%s}\n' % (checksum, value))
    with pytest.raises(RunError, match="newer Winnow"):
        journal.read(LocalObjects(tmp_path), path.name)


def test_a_full_disk_is_told_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        journal.append(LocalObjects(tmp_path), path.name, b"{}")
    assert journal.read(LocalObjects(tmp_path), path.name).values[:12] == tuple(VALUES)
