"""One registry that many runs publish to at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.storage.storage import open_storage
from orchestrator.records import aliases, registry, runs
from serve.version import ModelVersion
from tests.orchestrator.records import running

FEW, MANY = (3, 4), (10, 5)
"""Processes, and runs of each."""


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("size", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=str)
def test_runs_at_once_leave_it_whole(
    size: tuple[int, int], kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The slow one catches orders of publishing that few processes never meet.

    Ten processes publish five runs each.
    """
    processes, each = size
    place = str(tmp_path / "storage" if kind == "folder" else request.getfixturevalue("bucket"))
    words = [sys.executable, "-m", running.__name__, place, str(tmp_path / "made")]
    started = [
        subprocess.Popen([*words, str(first), str(each)])
        for first in range(0, processes * each, each)
    ]
    assert [process.wait(timeout=100) for process in started] == [0] * processes
    storage, count = open_storage(place), processes * each
    versions = {version.id: version for version, _ in registry.every(storage)}
    assert len(versions) == count
    found = runs.every(storage)
    assert len(found) == count
    for run in found:
        assert [note["number"] for note in run.notes if note["event"] == "step"] == [
            str(number) for number in range(running.NOTES)
        ]
        made = run.read("model", ModelVersion)
        assert made
        assert registry.read(storage, "reviews", made.id).id in versions
    for alias in (registry.LATEST, registry.DEPLOYED):
        moves = aliases.history(storage.objects, "reviews", alias)
        assert sorted(move.version for move in moves) == sorted(versions)
        assert [move.number for move in moves] == list(range(1, count + 1))
