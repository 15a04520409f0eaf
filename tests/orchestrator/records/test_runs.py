"""The run directory: what is recorded, found again, and refused."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.errors import CheckpointError, RunError
from jobs.loader import loads
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from orchestrator.decisions import select
from orchestrator.decisions.measurement import Measurement
from orchestrator.decisions.search import TrialResult
from orchestrator.records import journal, registry, runs
from tests.builders import any_of, inventory, job, measurement, plan_of, sweep

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MEASURED = measurement("T4:1/8/fp16")


def test_a_stage_is_made_once_and_read_back(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path), job(), NOW)
    calls: list[int] = []

    def make() -> Measurement:
        calls.append(1)
        return MEASURED

    assert run.stage("measurement", Measurement, make) == MEASURED
    assert run.stage("measurement", Measurement, make) == MEASURED
    assert len(calls) == 1


def test_values_of_one_stage_add_up_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path), job(), NOW)
    trial = TrialResult("1", "a", {"train.optimizer.lr": 1e-4}, {"accuracy": 0.9}, ((3, 0.9),))
    run.append("trials", trial)
    run.append("trials", trial)
    path = run.folder / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert run.read_all("trials", TrialResult) == (trial,)
    run.append("trials", trial)
    path.write_bytes(path.read_bytes().replace(b"0.9", b"0.8", 1))
    assert run.read_all("trials", TrialResult) == (trial,)
    assert run.notes[-1]["event"] == "damaged"


def test_a_trial_that_an_older_release_recorded_is_read(tmp_path: Path) -> None:
    """It held the time of starting its group beside its duration, which includes that."""
    run = runs.create(open_storage(tmp_path), job(), NOW)
    values = {"id": "1", "candidate": "a", "params": {}, "metrics": {"accuracy": 0.9}}
    old = json.dumps({**values, "duration_s": 50.0, "start_s": 7.0}).encode()
    journal.append(run.storage.objects, f"runs/{run.id}/trials.jsonl", old)
    expected = TrialResult("1", "a", {}, {"accuracy": 0.9}, duration_s=50.0)
    assert run.read_all("trials", TrialResult) == (expected,)


def test_a_journal_says_what_is_done_and_how_the_run_ended(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path), job(), NOW)
    assert (runs.finished_stages(run.notes), runs.state_of(run.notes)) == ((), "not ended")
    run.write("winner", MEASURED)
    run.write("plan", MEASURED)
    run.write("sweep_duration", 3.0)  # a part of a stage's result
    run.note("interrupted")
    assert runs.finished_stages(run.notes) == ("plan", "winner")
    assert runs.state_of(run.notes) == "interrupted"
    run.note("completed")
    assert runs.state_of(run.notes) == "completed"
    run.note("resumed")
    assert runs.state_of(run.notes) == "not ended"
    assert runs.state_of(()) == "not ended"


def test_a_second_run_within_a_second_is_refused(tmp_path: Path) -> None:
    runs.create(open_storage(tmp_path), job(), NOW)
    with pytest.raises(RunError, match="exists already"):
        runs.create(open_storage(tmp_path), job(), NOW)


def test_an_altered_record_is_refused(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path), job(), NOW)
    run.write("measurement", MEASURED)
    (run.folder / "measurement.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match="is damaged"):
        run.read("measurement", Measurement)


def test_the_recorded_job_runs_as_it_is(tmp_path: Path) -> None:
    spec = job(sweep=sweep({"train.optimizer.lr": {"loguniform": [1e-5, 1e-4]}}), seed=3)
    run = runs.create(open_storage(tmp_path), spec, NOW)
    assert loads((run.folder / runs.SPEC_FILE).read_bytes()) == spec


def test_the_winner_is_a_job_that_runs_as_it_is() -> None:
    spec = job(resources__any_of=any_of("T4:1", "T4:2"), sweep=sweep({"train.precision": ["fp16"]}))
    winner = select.select_unmeasured(plan_of(spec, inventory(T4=2)))
    found = loads(runs.to_job_file(select.winning_job(spec, winner)))
    assert found.sweep is None
    assert found.resources is not None
    assert [str(p.accelerators) for p in found.resources.any_of] == ["T4:1"]
    assert (found.train.precision, found.train.micro_batch_size) == ("fp16", 32)


@pytest.mark.parametrize("identity", [None, "nobody"])
def test_a_run_that_is_not_there_is_said_so(tmp_path: Path, identity: str | None) -> None:
    with pytest.raises(RunError, match=str(tmp_path)):
        runs.find(open_storage(tmp_path), identity)


def test_a_model_that_is_not_published_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no version of reviews is published"):
        registry.read(open_storage(tmp_path), "reviews")


@pytest.mark.parametrize("damage", ["missing", "altered", "no manifest"])
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, damage: str) -> None:
    (tmp_path / "a.txt").write_text("one", encoding="utf-8")
    manifest.write(tmp_path, {"step": 3})
    assert manifest.verify(tmp_path)["step"] == 3
    if damage == "missing":
        (tmp_path / "a.txt").unlink()
    elif damage == "altered":
        (tmp_path / "a.txt").write_text("two", encoding="utf-8")
    else:
        (tmp_path / manifest.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"missing|altered|incomplete"):
        manifest.verify(tmp_path)
