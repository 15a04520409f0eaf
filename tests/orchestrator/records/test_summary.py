"""What a listing of runs says about each of them."""

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from jobs.storage.storage import open_storage
from orchestrator.records import lease, runs, summary
from orchestrator.records.lease import Holder
from tests.builders import job

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOLDER = Holder("me", 3, 1, "another-host", 7, 0.0, "job")
BEGUN = ({"event": "created"}, {"event": "owned", "epoch": "3"})


@pytest.mark.parametrize(
    ("notes", "holder", "state"),
    [
        (BEGUN, HOLDER, "running"),
        (BEGUN, replace(HOLDER, owner=None), "died"),
        (BEGUN, replace(HOLDER, epoch=4), "died"),  # a later run of the job holds the lease
        (BEGUN, replace(HOLDER, host=socket.gethostname()), "died"),  # pid 7 is another process
        (BEGUN, None, "died"),
        ((*BEGUN, {"event": "interrupted"}), HOLDER, "interrupted"),
        ((*BEGUN, {"event": "failed"}), HOLDER, "failed"),
        ((*BEGUN, {"event": "completed"}), None, "completed"),
        ((*BEGUN, {"event": "completed"}, {"event": "resumed"}), HOLDER, "running"),
    ],
)
def test_the_journal_and_the_lease_tell_the_state(
    notes: runs.Notes, holder: Holder | None, state: str
) -> None:
    assert summary.state_of(notes, holder) == state


def test_a_run_is_running_while_its_process_holds_the_lease(tmp_path: Path) -> None:
    storage, spec = open_storage(tmp_path), job()
    run = runs.create(storage, spec, NOW, "alice@laptop")
    key = runs.lease_key(spec)
    with lease.held(storage.objects, key, "job", lambda _: None) as held:
        run.note("owned", epoch=str(held.epoch), lease=key)
        found = summary.summarize(run)
        assert (found.state, found.owner, found.model) == ("running", "alice@laptop", spec.name)
        assert found.metric == spec.metrics[0]
        assert (found.winner, found.value, found.cost_usd) == (None, None, None)
        holder = summary.holder_of(run, run.notes)
        assert holder
        assert (holder.process, holder.host) == (os.getpid(), socket.gethostname())
        assert holder.started == psutil.Process().create_time()
    assert summary.summarize(run).state == "died"


def test_a_run_of_an_older_release_has_a_state_and_no_owner(tmp_path: Path) -> None:
    storage, spec = open_storage(tmp_path), job()
    run = runs.create(storage, spec, NOW)
    with lease.held(storage.objects, runs.lease_key(spec), "job", lambda _: None):
        run.note("owned", epoch="1")
        assert summary.summarize(run).state == "running"
    (run.folder / "receipt.json").write_text("damaged")
    run.note("completed")
    found = summary.summarize(run)
    assert (found.state, found.owner, found.value) == ("completed", None, None)
