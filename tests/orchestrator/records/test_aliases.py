"""Aliases: what points where, moved by many at once, some of them killed."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.errors import RunError
from jobs.storage.local import LocalObjects
from jobs.storage.storage import open_storage
from orchestrator.records import aliases
from tests import s3
from tests.orchestrator.records import promoting

FEW, MANY = (3, 15, 3), (8, 50, 12)
"""Number of processes, of alias moves by each process, and of processes that are killed."""
LOST = {"lost": 0.05, "error": 0.02}


def test_an_alias_keeps_its_history(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    assert aliases.history(objects, "m", "latest") == ()
    for version in ("a", "b", "b", "a"):
        aliases.move(objects, "m", "latest", lambda _, version=version: version)
    moves = aliases.history(objects, "m", "latest")
    assert [(move.number, move.version) for move in moves] == [(1, "a"), (2, "b"), (3, "a")]


def test_an_operation_that_is_repeated_is_done_once(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    first = aliases.move(objects, "m", "latest", lambda _: "a", operation="x")
    aliases.move(objects, "m", "latest", lambda _: "b")
    assert aliases.move(objects, "m", "latest", lambda _: "a", operation="x") == first
    assert aliases.history(objects, "m", "latest")[-1].version == "b"


def test_a_rollback_goes_to_the_version_before(tmp_path: Path) -> None:
    assert aliases.previous("m", ["a", "b", "b"]) == "a"
    assert aliases.previous("m", ["a", "b", "a"]) == "b"
    with pytest.raises(RunError, match="no other version of m"):
        aliases.previous("m", ["a"])


def test_an_altered_alias_is_refused(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    aliases.move(objects, "m", "latest", lambda _: "a")
    (tmp_path / "models/m/latest.json").write_text("[{}]", encoding="utf-8")
    with pytest.raises(RunError, match="latest of m was altered"):
        aliases.history(objects, "m", "latest")


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("size", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=str)
def test_killed_processes_leave_a_history_that_is_one_after_another(
    size: tuple[int, int, int],
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slow one catches orders of moves that only many processes meet.

    Eight processes make 400 moves, and twelve are killed.
    """
    if kind == "folder":
        check(str(tmp_path / "storage"), tmp_path, size)
        return
    bucket = request.getfixturevalue("bucket")
    faults = s3.Faults(LOST, seed=3)
    with s3.proxy(request.getfixturevalue("s3_url"), faults) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        check(bucket, tmp_path, size)
    assert faults.met["lost"]


def check(place: str, folder: Path, size: tuple[int, int, int]) -> None:
    logs = run_all(place, folder, *size)
    moves = aliases.history(open_storage(place).objects, promoting.MODEL, promoting.ALIAS)
    assert [move.number for move in moves] == list(range(1, len(moves) + 1))
    by_operation = {move.operation: move for move in moves}
    assert len(by_operation) == len(moves)
    ends: list[tuple[float, int]] = []
    rows = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    answered = {row["operation"]: row for row in rows if "end" in row}
    begun = {row["operation"] for row in rows}
    assert begun >= by_operation.keys() >= answered.keys()
    for operation, row in answered.items():
        assert (by_operation[operation].number, by_operation[operation].version) == (
            row["number"],
            row["version"],
        )
        ends.append((row["end"], row["number"]))
    for row in answered.values():  # who began after another's answer comes after it
        assert all(number < row["number"] for end, number in ends if end < row["begin"])
    for row in answered.values():
        before = [move.version for move in moves[: row["number"] - 1]]
        if row["is_rollback"] and len(set(before)) > 1:
            assert row["version"] == aliases.previous(promoting.MODEL, before)


def size(log: Path) -> int:
    """Bytes of a log; 0 before it is there."""
    return log.stat().st_size if log.exists() else 0


def run_all(place: str, folder: Path, processes: int, operations: int, most: int) -> list[Path]:
    """Logs of processes that all came to their end, some after having been killed."""
    logs = [folder / f"{number}.jsonl" for number in range(processes)]

    def start(number: int) -> "subprocess.Popen[bytes]":
        words = [place, str(logs[number]), str(number), str(operations)]
        return subprocess.Popen([sys.executable, "-m", promoting.__name__, *words])

    running, draw = {number: start(number) for number in range(processes)}, random.Random(5)
    kills, written = 0, dict[int, int]()
    while running:
        time.sleep(draw.uniform(0.05, 0.1))
        for number, process in list(running.items()):
            if process.poll() is not None:
                assert process.returncode == 0
                del running[number]
        # only who has written since its start is in the middle of its work
        busy = [number for number in running if size(logs[number]) > written.get(number, 0)]
        if busy and kills < most:
            victim = draw.choice(busy)
            running[victim].kill()
            running[victim].wait()
            kills += 1
            written[victim] = size(logs[victim])
            running[victim] = start(victim)
    assert kills == most
    return logs
