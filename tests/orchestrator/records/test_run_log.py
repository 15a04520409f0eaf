"""What a run said is kept, read in order, and followed."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator.notices import Notice, Pace, Progress, Remark, StageFinished, StageStarted
from orchestrator.records import following, lease, run_log, runs
from tests.builders import eventually, job

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def new_run(folder: Path) -> runs.Run:
    return runs.create(open_storage(folder), job(), NOW, "alice@laptop")


@pytest.mark.parametrize(
    ("notice", "stage", "text"),
    [
        (StageStarted("plan"), "plan", "started …"),
        (Progress("fit", 3, 9, "loss 0.1"), "fit", "3/9 loss 0.1"),
        (StageFinished("fit", "9 steps"), "fit", "✓ 9 steps"),
        (Remark("two workers"), "", "two workers"),
    ],
)
def test_a_notice_becomes_a_line(notice: Notice, stage: str, text: str) -> None:
    line = run_log.line_of(notice, NOW, Pace(30, lambda: 0.0))
    assert line == run_log.Line(NOW, stage, text)


def test_progress_is_thinned_out_but_for_its_end() -> None:
    pace = Pace(30, lambda: 0.0)
    steps = [Progress("fit", step, 3) for step in (1, 2, 3)]
    lines = [run_log.line_of(step, NOW, pace) for step in steps]
    assert [line.text if line else None for line in lines] == ["1/3", None, "3/3"]


def test_lines_are_written_while_the_run_goes_on_and_at_its_end(tmp_path: Path) -> None:
    run, shown = new_run(tmp_path), list[Notice]()
    reader = run_log.Reader(run)
    assert [line.text for line in reader.new()] == ["created by alice@laptop"]
    with run_log.kept(run, shown.append, flush_s=0.01) as tell:
        tell(Remark("first"))
        assert eventually(lambda: bool(run.kept("log.jsonl")))
        run.note("failure", message="a worker was lost", done="going on", cause="x")
        assert [line.text for line in reader.new()] == ["first", "a worker was lost: going on"]
    with run_log.kept(run, shown.append) as tell:
        tell(Remark("second"))
    assert [line.text for line in reader.new()] == ["second"]
    assert shown == [Remark("first"), Remark("second")]
    assert reader.new() == []


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.folder / "log.jsonl").mkdir()
    with run_log.kept(run, lambda _: None, flush_s=0.01) as tell:
        tell(Remark("lost"))


def test_a_run_whose_lease_is_renewed_no_more_has_died(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    key = runs.lease_key(job())
    run.note("owned", epoch="1", lease=key)
    holder = lease.Holder("me", 1, 1, f"not-{os.uname().nodename}", 7, 0.0, "job")
    run.storage.objects.write(key, lease.HOLDER.dump_json(holder))
    states = following.states(run, look_s=0.01, stale_s=0.05)
    assert next(states) == "running"
    with pytest.raises(RunError, match="it has died"):
        list(states)
