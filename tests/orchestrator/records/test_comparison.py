"""Runs side by side."""

from datetime import UTC, datetime
from pathlib import Path

from jobs.storage.storage import open_storage
from orchestrator.records import comparison, runs, summary
from orchestrator.records.comparison import Profile
from tests.builders import job

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def test_fields_and_metrics_are_aligned_and_equal_fields_left_out(tmp_path: Path) -> None:
    run = summary.summarize(runs.create(open_storage(tmp_path), job(), NOW))
    found = comparison.compare(
        [
            Profile(run, {"accuracy": 0.9}, {"seed": 1, "train.epochs": 2}),
            Profile(run, {"accuracy": 0.8, "f1": 0.7}, {"seed": 1, "budget": "1h"}),
        ]
    )
    assert found.metrics == {"accuracy": (0.9, 0.8), "f1": (None, 0.7)}
    assert found.fields == {"train.epochs": (2, None), "budget": (None, "1h")}


def test_a_job_that_this_release_cannot_read_is_compared_as_it_is_written(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path), job(), NOW)
    run.keep(runs.SPEC_FILE, b"from_tomorrow: {a: [1, 2]}")
    fields = comparison.profile(run).fields
    assert fields == {"from_tomorrow.a.0": 1, "from_tomorrow.a.1": 2}
