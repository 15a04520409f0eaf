"""The commands that list, follow, compare, cancel and delete runs and versions."""

import io
import json
import subprocess
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jobs.storage.storage import Storage, open_storage
from orchestrator.cli.ls import show_age
from orchestrator.cli.schema import KNOWN
from orchestrator.execution import Beginning, owned
from orchestrator.loading import load_job
from orchestrator.notices import Notice, Progress, Remark, StageFinished, StageStarted
from orchestrator.records import cancellation, lease, registry, removal, run_log, runs
from serve.version import ModelVersion
from tests.builders import MINIMAL, job
from tests.commands import call as winnow
from tests.commands import own_process, printed
from tests.orchestrator.records import acting

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
    listed = printed("ls", winnow(tmp_path, "ls", "--json").stdout)
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


def test_what_does_not_run_cannot_be_cancelled(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path / ".winnow"), job(), NOW)
    none = winnow(tmp_path, "cancel", "reviews-20200101-000000-abcdef")
    assert (none.returncode, "is not in" in none.stderr) == (1, True)
    assert run.id in none.stderr
    died = winnow(tmp_path, "cancel", run.id)
    assert (died.returncode, "does not run any more" in died.stderr) == (1, True)
    run.note("completed")
    ended = winnow(tmp_path, "cancel", run.id)
    assert ended.returncode == 1
    assert f"run {run.id} has ended already (completed)" in ended.stderr
    assert cancellation.requested(run) is None


def test_a_cancelled_run_ends_as_after_a_signal_and_can_go_on(tmp_path: Path) -> None:
    job_folder(tmp_path)
    run = begin(tmp_path)
    storage = open_storage(tmp_path / ".winnow")
    found = runs.find(storage, None)
    assert printed("ls", winnow(tmp_path, "ls", "--json").stdout)[0]["state"] == "running"
    said = in_own_process(tmp_path, "cancel", found.id, user="bob")
    assert said == {"run": found.id, "state": "interrupted"}
    run.communicate(timeout=60)
    assert run.returncode == 0
    last = found.notes[-1]
    assert (last["event"], last["by"]) == ("interrupted", "bob")
    spec = load_job(tmp_path / "job.yaml", [f"storage={tmp_path}/.winnow"])
    with owned(spec, Beginning(resume=True), lambda _: None) as again:
        assert again.id == found.id
        assert cancellation.requested(again) is None


def in_own_process(folder: Path, command: str, *arguments: str, user: str = "ann") -> Any:
    """What a command prints with --json, of the last line if there are several results."""
    words = [sys.executable, "-m", "orchestrator", *command.split(), *arguments, "--json"]
    environment = {**own_process(folder), "WINNOW_USER": user}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines() if command == "watch" else [done.stdout]
    return [printed(command, line) for line in lines][-1]


def job_folder(folder: Path) -> None:
    """Writes a job file and its rows."""
    (folder / "job.yaml").write_text(MINIMAL, encoding="utf-8")
    for name in ("train.csv", "eval.csv"):
        (folder / name).write_text("text,label\na,0\nb,1\n", encoding="utf-8")


def begin(folder: Path) -> "subprocess.Popen[str]":
    """A process that owns a run of job.yaml until it is interrupted, and says so by exit code 0."""
    code = f"""
import time
from orchestrator import interruption
from orchestrator.execution import Beginning, owned
from orchestrator.loading import load_job
interruption.take_over()
spec = load_job("job.yaml", ["storage={folder}/.winnow"])
try:
    with owned(spec, Beginning(), lambda _: None):
        print("begun", flush=True)
        time.sleep(600)
except interruption.Terminated:
    raise SystemExit(0)
raise SystemExit(1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=own_process(folder),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("arguments", [("endpoints",), ("undeploy", "reviews")])
def test_endpoints_need_a_cluster(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = winnow(tmp_path, *arguments)
    assert (done.returncode, "no cluster is up" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


def test_a_run_is_deleted_once_it_has_ended_and_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, spec = open_storage(tmp_path / ".winnow"), job()
    run, other = runs.create(storage, spec, NOW), runs.create(storage, job(seed=2), NOW)
    key = runs.lease_key(spec)
    with lease.held(storage.objects, key, "job", lambda _: None) as held:
        run.note("owned", epoch=str(held.epoch), lease=key)
        refused = winnow(tmp_path, "rm", run.id, "--yes")
        assert (refused.returncode, "has not ended" in refused.stderr) == (1, True)
    run.note("completed")
    for answer in ("n\n", ""):  # the second is an end of the input
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        kept = winnow(tmp_path, "rm", run.id)
        assert (kept.returncode, "pass --yes" in kept.stderr) == (1, True)
        assert run.notes
    done = printed("rm", winnow(tmp_path, "rm", run.id, "--yes", "--json").stdout)
    assert done["deleted"] == run.id
    assert done["bytes"] > 0
    assert [each.id for each in runs.every(storage)] == [other.id]


def test_a_version_is_deleted_unless_an_alias_names_it(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / ".winnow")
    first, second, third = (publish(storage, tmp_path, name) for name in ("a", "b", "c"))
    registry.note_deployed(storage, first)
    for kept, why in ((first, "deployed last"), (third, "alias latest names")):
        refused = winnow(tmp_path, "rm", f"reviews@{kept.id}", "--yes")
        assert (refused.returncode, why in refused.stderr) == (1, True)
    assert winnow(tmp_path, "rm", f"reviews@{second.id}", "--yes").returncode == 0
    assert {version.id for version, _ in registry.every(storage)} == {first.id, third.id}
    again = winnow(tmp_path, "rm", f"reviews@{second.id}", "--yes")
    assert (again.returncode, "has no version" in again.stderr) == (1, True)


def test_a_version_that_serves_is_in_use() -> None:
    reason = removal.use_of("reviews", "a", ["a"], [])
    assert reason is not None
    assert "winnow undeploy reviews" in reason
    assert removal.use_of("reviews", "a", ["b"], []) is None


def publish(storage: Storage, folder: Path, name: str) -> ModelVersion:
    """A version of the model `reviews`, with weights made of its name."""
    reference = acting.checkpoint(folder / name, name)
    return registry.publish(job(), reference, ("a", "b"), run_id=name, storage=storage)


def test_a_run_s_log_is_followed_to_its_end(tmp_path: Path) -> None:
    job_folder(tmp_path)
    process = begin(tmp_path)
    run = runs.find(open_storage(tmp_path / ".winnow"), None)
    assert "created by" in winnow(tmp_path, "logs", run.id).stdout
    cancellation.request(run, "bob", NOW)
    done = winnow(tmp_path, "logs", run.id, "-f", "--json")
    process.communicate(timeout=60)
    said = [json.loads(line)["text"] for line in done.stdout.splitlines()]
    assert (said[0].startswith("created by"), said[-1]) == (True, "interrupted by bob")
    whole = printed("logs", winnow(tmp_path, "logs", run.id, "--json").stdout)
    assert [line["text"] for line in whole] == said


def test_a_run_is_watched_to_its_end(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path / ".winnow"), job(), NOW, "ann@laptop")
    told: list[Notice] = [
        StageStarted("probe", "2 candidates"),
        Progress("probe", 1, 2, "T4:1/16: 0.1 s a step", is_result=True),
        Progress("probe", 2, 2, "T4:1/8: 0.2 s a step", is_result=True),
        StageFinished("probe", "2 candidates measured"),
        Remark("a remark, 3/4 of it"),
    ]
    with run_log.kept(run, lambda _: None) as tell:
        for notice in told:
            tell(notice)
    lines = run.intact(run_log.NAME, run_log.Line)
    assert [run_log.notice_of(line) for line in lines] == told
    run.note("completed")
    done = winnow(tmp_path, "watch")
    assert done.returncode == 0
    shown = [line.strip() for line in done.stderr.splitlines()]
    assert "probe 1/2 T4:1/16: 0.1 s a step" in shown
    assert "probe ✓ 2 candidates measured" in shown
    assert f"run {run.id} has completed" in done.stdout
    first, *_ = winnow(tmp_path, "watch", run.id, "--json").stdout.splitlines()
    assert printed("watch", first)["text"] == "created by ann@laptop"
    run.note("failed", error="no room")
    failed = winnow(tmp_path, "watch", run.id)
    assert (failed.returncode, "has ended: failed" in failed.stderr) == (1, True)


def test_runs_are_compared_by_what_differs(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / ".winnow")
    one, two = (runs.create(storage, job(seed=seed), NOW) for seed in (1, 2))
    found = printed("compare", winnow(tmp_path, "compare", one.id, two.id, "--json").stdout)
    assert [each["id"] for each in found["runs"]] == [one.id, two.id]
    assert found["fields"] == {"seed": [1, 2]}
    shown = winnow(tmp_path, "compare", one.id, two.id).stdout
    assert [line.split() for line in shown.splitlines() if line.startswith("seed")] == [
        ["seed", "1", "2"]
    ]
    alone = winnow(tmp_path, "compare", one.id)
    assert (alone.returncode, "name at least two runs" in alone.stderr) == (1, True)


@pytest.mark.parametrize(("typed", "count"), [("rev", 1), ("other", 0)])
def test_the_shell_completes_run_ids(tmp_path: Path, typed: str, count: int) -> None:
    run = runs.create(open_storage(tmp_path / ".winnow"), job(), NOW)
    asked = {"_WINNOW_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    words = {"COMP_WORDS": f"winnow watch {typed}"}
    done = winnow(tmp_path, environment={**asked, **words})
    assert done.stdout.split() == [run.id][:count]


def test_each_command_runs_in_a_process_of_its_own(old: Path) -> None:
    """Those that need a cluster are run in `test_pipeline` and `test_queue_actor`."""
    folder = old / "winnow-storage-0.1.0"
    storage = open_storage(folder / "storage")
    failed = runs.create(storage, job(seed=9), NOW, "ann@laptop")
    failed.note("failed", error="no room")

    def run(command: str, *arguments: str) -> Any:
        return in_own_process(folder, command, *arguments, "--storage", "storage")

    states = {each["id"]: each["state"] for each in run("ls")}
    (whole,) = (name for name, state in states.items() if state == "completed")
    assert states[failed.id] == "failed"
    assert run("logs", failed.id)[0]["text"] == "created by ann@laptop"
    assert run("watch", whole)["text"] == "completed"
    assert [each["id"] for each in run("compare", whole, failed.id)["runs"]] == [whole, failed.id]
    newest, _ = run("models list")[0]
    assert run("models show", newest["name"])["version"] == newest
    run("rm", failed.id, "--yes")
    assert {each["id"] for each in run("ls")} == set(states) - {failed.id}


def test_what_is_printed_has_a_schema(tmp_path: Path) -> None:
    for command in KNOWN:
        text = winnow(tmp_path, "schema", "--of", command).stdout
        jsonschema.Draft202012Validator.check_schema(json.loads(text))
    none = winnow(tmp_path, "schema", "--of", "up")
    assert (none.returncode, "there are those of ls, logs" in none.stderr) == (1, True)
