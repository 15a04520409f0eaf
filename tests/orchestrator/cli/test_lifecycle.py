"""The commands that list, follow, compare, cancel and delete runs and versions."""

import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobs.storage.storage import open_storage
from orchestrator.cli.ls import show_age
from orchestrator.records import runs
from tests.builders import job
from tests.commands import call as winnow

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OLD = Path(__file__).parents[1] / "storage-0.1.0.tar.xz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with the storage of a release that completed a run and published its model."""
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / ".winnow")
    first = runs.create(storage, job(), NOW, "alice@laptop")
    second = runs.create(storage, job(seed=2), NOW + timedelta(hours=1))
    first.note("failed", error="no data")
    listed = json.loads(winnow(tmp_path, "ls", "--json").stdout)
    assert [(each["id"], each["state"]) for each in listed] == [
        (second.id, "died"),
        (first.id, "failed"),
    ]
    assert listed[1]["owner"] == "alice@laptop"
    shown = winnow(tmp_path, "ls", "--limit", "1").stdout
    assert second.id in shown
    assert first.id not in shown


def test_an_empty_storage_says_what_to_do(tmp_path: Path) -> None:
    assert "no run is in .winnow" in winnow(tmp_path, "ls").stdout


@pytest.mark.parametrize(
    ("age", "shown"),
    [({"minutes": 5}, "5 min"), ({"hours": 47}, "47 h"), ({"days": 3}, "3 d"), ({}, "0 min")],
)
def test_ages_are_shown_in_one_unit(age: dict[str, int], shown: str) -> None:
    assert show_age(timedelta(**age)) == shown
