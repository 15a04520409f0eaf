"""The list of runs, and how fast it is with many."""

import shutil
import time
from pathlib import Path

from jobs.storage.storage import open_storage
from orchestrator.records import lease, lineage, registry, removal, runs
from orchestrator.ui.listing import FRESH_S, SEEN_S, RunList
from tests.builders import job
from tests.orchestrator.records import acting
from tests.orchestrator.ui import stored


def test_500_runs_and_50_models_are_listed_in_seconds(tmp_path: Path) -> None:
    """In processor time, which other tests on the machine do not lengthen; a slow one may."""
    storage = open_storage(tmp_path / "storage")
    first = runs.create(storage, job(), stored.NOW, "alice@laptop")
    first.note("failed", error="no data")
    for number in range(1, 500):
        copy = first.id.replace("120000", f"{120000 + number}")
        shutil.copytree(first.folder, first.folder.with_name(copy))
    for number in range(50):
        made = acting.checkpoint(tmp_path / str(number), f"weights {number}")
        registry.publish(job(), made, ("a",), run_id=f"run-{number}", storage=storage)
    begin = time.process_time()
    assert len(RunList(storage).every()) == 500
    assert len(lineage.every(storage)) == 50
    assert time.process_time() - begin < 4.0


def test_a_listing_follows_the_storage(tmp_path: Path) -> None:
    storage, now = open_storage(tmp_path), 0.0
    listing = RunList(storage, lambda: now)
    run, key = runs.create(storage, job(), stored.NOW), runs.lease_key(job())
    with lease.held(storage.objects, key, "job", lambda _: None) as held:
        run.note("owned", epoch=str(held.epoch), lease=key)
        assert [each.state for each in listing.every()] == ["running"]
    assert [each.state for each in listing.every()] == ["running"]  # seen a moment ago
    now += FRESH_S
    assert [each.state for each in listing.every()] == ["died"]
    run.note("completed")
    now += FRESH_S
    assert [each.state for each in listing.every()] == ["completed"]
    run.note("resumed")
    now += SEEN_S["completed"]
    assert [each.state for each in listing.every()] == ["died"]
    removal.remove_run(run)
    now += FRESH_S
    assert listing.every() == ()
