"""Winnow from Python: values in, values out, and nothing heavy before it is needed."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

import orchestrator as winnow
from cluster.session import Connection
from jobs.errors import CheckpointError, DeployError, InfeasibleError, JobFileError, RunError
from jobs.storage.storage import open_storage
from orchestrator import execution
from orchestrator.context import Context
from orchestrator.decisions import select
from orchestrator.execution import Beginning
from orchestrator.notices import Notice, StageFinished, StageStarted
from orchestrator.records import runs
from orchestrator.records.runs import Run
from tests.builders import MINILM, any_of, free_port, inventory, sweep
from tests.commands import own_process


def content(reviews: Path, folder: Path, **fields: Any) -> dict[str, Any]:
    """What a job file of two candidates would hold."""
    return {
        "version": 1,
        "name": "reviews-from-python",
        "model": {"base": MINILM},
        "data": {
            "train": {"path": str(reviews / "train.csv")},
            "eval": {"path": str(reviews / "eval.csv")},
            "text": "text",
            "max_length": 16,
        },
        "train": {"epochs": 1, "global_batch_size": 16, "precision": "fp32"},
        "resources": {"any_of": any_of("cpu:1")},
        "sweep": sweep({"train.micro_batch_size": [8, 16]}),
        "storage": str(folder / "storage"),
        **fields,
    }


def context_of(spec: winnow.JobSpec, folder: Path) -> Context:
    """A run that began."""
    storage = open_storage(folder)
    told: list[Notice] = []
    return Context(spec, Run("r", storage), storage, told.append, 0)


def test_a_run_says_what_it_waits_for_before_it_reads_anything(
    reviews: Path, tmp_path: Path
) -> None:
    spec = winnow.load_job(content(reviews, tmp_path))
    told: list[Notice] = []
    with execution.owned(spec, Beginning(), told.append) as run:
        started, finished = told
    assert isinstance(started, StageStarted)
    assert "data, base model and code" in started.text
    assert finished == StageFinished("run", f"{run.id} in {run.url}")


def test_importing_it_imports_no_torch_ray_or_pandas_and_planning_none_either(
    reviews: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(content(reviews, tmp_path)), encoding="utf-8")
    nodes = tmp_path / "nodes.json"
    nodes.write_text('{"nodes": [{"id": "a", "sku": "cpu", "devices": 2}]}', encoding="utf-8")
    script = f"""
        import sys
        import orchestrator as winnow
        assert "pydantic" not in sys.modules
        plan = winnow.plan(winnow.load_job({str(job)!r}), inventory={str(nodes)!r})
        try:
            winnow.predict("http://127.0.0.1:{free_port()}/reviews", "a fine film")
        except winnow.WinnowError as error:
            print(len(plan.candidates), error)
        print([name for name in ("torch", "ray", "pandas", "typer") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=own_process(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    answer, imported = done.stdout.splitlines()
    assert answer.startswith("2 http://127.0.0.1:")
    assert "cannot be reached" in answer
    assert imported == "[]"


def test_every_public_name_is_there_and_no_other_is() -> None:
    assert set(winnow.__all__) <= set(dir(winnow))
    for name in winnow.__all__:
        assert getattr(winnow, name).__name__ == name
    with pytest.raises(AttributeError, match="'orchestrator' has no attribute 'prdict'"):
        winnow.prdict  # type: ignore[attr-defined]  # noqa: B018 - misspelled on purpose


def test_a_mapping_and_a_file_with_it_are_the_same_job(reviews: Path, tmp_path: Path) -> None:
    values = content(reviews, tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    settings = ["train.epochs=3"]
    of_file = winnow.load_job(path, settings)
    assert winnow.load_job(values, settings) == of_file == winnow.load_job(str(path), settings)
    assert of_file.train.epochs == 3


def test_all_that_is_wrong_with_a_mapping_is_told_at_once(reviews: Path, tmp_path: Path) -> None:
    values = content(reviews, tmp_path, train={"epochs": -1, "epoch": 2})
    with pytest.raises(JobFileError) as caught:
        winnow.load_job(values)
    assert [problem.path for problem in caught.value.problems] == ["train.epochs", "train.epoch"]
    with pytest.raises(JobFileError, match="holds a value that YAML has no word for"):
        winnow.load_job(content(reviews, tmp_path, name=object()))


def test_a_plan_on_nodes_that_are_given_needs_no_cluster(reviews: Path, tmp_path: Path) -> None:
    spec = winnow.load_job(content(reviews, tmp_path))
    plan = winnow.plan(spec, inventory=inventory(cpu=2))
    assert {candidate.micro_batch_size for candidate in plan.candidates} == {8, 16}
    with pytest.raises(InfeasibleError, match="cpu"):
        winnow.plan(spec, inventory=inventory(T4=2))


def test_of_a_plan_that_is_given_no_more_than_its_candidates_are_tried(
    reviews: Path, tmp_path: Path
) -> None:
    spec = winnow.load_job(content(reviews, tmp_path))
    plan = winnow.plan(spec, inventory=inventory(cpu=2))
    first, second = plan.candidates
    tried = plan.among(replace(plan, candidates=(second,)))
    assert tried.candidates == (second,)
    assert [(left.id, left.reason) for left in tried.skipped] == [
        (first.id, "the given plan leaves it out")
    ]
    with pytest.raises(InfeasibleError, match="of which this cluster can run nothing"):
        tried.among(replace(plan, candidates=(first,)))


def test_another_winner_takes_the_recorded_one_s_place_until_the_run_is_trained(
    reviews: Path, tmp_path: Path
) -> None:
    from orchestrator import sweeping

    spec = winnow.load_job(content(reviews, tmp_path))
    first, second = winnow.plan(spec, inventory=inventory(cpu=2)).candidates
    chosen, other = (select.Winner(each, {}, None, "because") for each in (first, second))
    context = context_of(spec, tmp_path)
    context.run.write("winner", chosen)
    sweeping.adopt(context, other)
    assert context.run.value("winner", winnow.Winner) == other
    reference = winnow.CheckpointRef("/nowhere", 1, {})
    fit = winnow.FitResult(reference, ("a", "b"), 1, 1.0, 0, (), ())
    context.run.write("fit", fit)
    sweeping.adopt(context, other)
    with pytest.raises(RunError, match="has trained another winner"):
        sweeping.adopt(context, chosen)


def test_a_run_of_another_job_is_neither_trained_nor_published(
    reviews: Path, tmp_path: Path
) -> None:
    spec = winnow.load_job(content(reviews, tmp_path))
    reference = winnow.CheckpointRef("/nowhere", 1, {})
    fit = winnow.FitResult(reference, ("a", "b"), 1, 1.0, 0, (), ())
    with pytest.raises(RunError, match="run 'gone' is not in"):
        winnow.publish(spec, replace(fit, run="gone"))
    storage, now = open_storage(spec.storage), datetime(2026, 11, 27, tzinfo=UTC)
    changed = winnow.load_job(content(reviews, tmp_path), ["seed=7"])
    run = runs.create(storage, changed, now)
    with pytest.raises(RunError, match=f"run {run.id} is not of job {spec.name} as it is now"):
        winnow.publish(spec, replace(fit, run=run.id))
    for job in (spec, spec.model_copy(update={"sweep": None, "serve": None})):  # trained alone
        run = runs.create(storage, job, now)
        with pytest.raises(CheckpointError, match="nowhere"):
            winnow.publish(spec, replace(fit, run=run.id))
        assert [note["event"] for note in run.notes] == ["created", "owned", "failed"]


def test_what_cannot_be_deployed_is_told_before_a_cluster_is_joined(
    reviews: Path, tmp_path: Path
) -> None:
    with pytest.raises(JobFileError, match="serve: is required to deploy; add route"):
        winnow.deploy(winnow.load_job(content(reviews, tmp_path)))
    served = winnow.load_job(content(reviews, tmp_path, serve={"route": "/never"}))
    with pytest.raises(RunError, match="no version of reviews-from-python is published"):
        winnow.deploy(served)


def test_an_endpoint_value_is_asked_at_its_url() -> None:
    endpoint = winnow.Endpoint("reviews", f"http://127.0.0.1:{free_port()}/reviews", "abc")
    with pytest.raises(DeployError, match=f"^{endpoint.url}/health cannot be reached"):
        winnow.predict(endpoint, "a fine film")


SCRIPT = """
import json
import os
import signal
import sys

import orchestrator as winnow

before = signal.getsignal(signal.SIGTERM)
job = winnow.load_job("job.yaml")
plan = winnow.plan(job)
swept = winnow.sweep(job, plan)
fit = winnow.train(job, swept)
receipt = winnow.receipt(job, fit)
version = winnow.publish(job, fit)
endpoint = winnow.deploy(job, version)
texts = ["a superb film", "a dull film"]
labels = winnow.predict(endpoint, texts)
outcome = winnow.run(job, resume=True)
print(json.dumps({
    "candidates": [candidate.id for candidate in plan.candidates],
    "measured": [found.candidate for found in swept.measurements],
    "runs": [swept.run, fit.run, receipt.run, outcome.run],
    "receipt_again": outcome.receipt == receipt,
    "predicted_s": receipt.predicted_time_s.low,
    "actual_s": receipt.actual_time_s,
    "winner": [str(swept.winner), receipt.winner],
    "accuracy": version.metrics["accuracy"],
    "versions": [version.id, endpoint.version, outcome.model.id],
    "urls": [endpoint.url, outcome.endpoint.url],
    "labels": [each.label for each in labels],
    "scores": [each.score for each in labels],
    "handler_is_kept": signal.getsignal(signal.SIGTERM) is before,
}))
"""


@pytest.mark.ray
@pytest.mark.e2e
def test_a_script_goes_from_a_plan_to_predictions_and_its_run_can_be_resumed(
    ray_cluster: Connection, reviews: Path, tmp_path: Path
) -> None:
    """Earns its two minutes: each function of the API for real, in one process, and one journal."""
    from serve.deploy import endpoints

    fields = {
        "train": {"epochs": 2, "global_batch_size": 16, "precision": "fp32"},
        "sweep": sweep(
            {"train.micro_batch_size": [8, 16]},
            probe={"warmup": "10ms", "duration": "100ms", "confirm": 0},
            objective={"minimize": "time"},
        ),
        "serve": {"route": "/from-python", "engine": "openvino-fp32"},
    }
    values = content(reviews, tmp_path, **fields)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    environment = {**own_process(tmp_path), "WINNOW_HOME": os.environ["WINNOW_HOME"]}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        timeout=480,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["candidates"] == found["measured"]
    assert found["receipt_again"]
    assert found["handler_is_kept"]
    assert len(set(found["runs"])) == len(set(found["versions"])) == len(set(found["urls"])) == 1
    assert found["winner"][0].startswith(found["winner"][1])
    assert found["predicted_s"] > 0
    assert found["actual_s"] > 0
    assert found["accuracy"] > 0.7
    assert found["labels"] == ["positive", "negative"]
    assert all(0.5 <= score <= 1 for score in found["scores"])

    (run,) = runs.every(open_storage(tmp_path / "storage"))
    check_journal(run)
    assert endpoints.remove("reviews-from-python")


def check_journal(run: Run) -> None:
    """Each stage of a run is recorded once, whoever asked for it."""
    asked = tuple(stage for stage in runs.STAGES if stage not in ("harness", "upload"))
    assert runs.finished_stages(run.notes) == asked
    events = [note["event"] for note in run.notes]
    assert events[-1] == "completed"
    assert events.count("completed") == 4  # the sweep, the training, publishing, and the run
    assert not {"failed", "interrupted"} & set(events)
    stages = [note["stage"] for note in run.notes if note["event"] == "finished"]
    once = ("winner", "fit", "receipt", "model", "endpoint")
    assert {stage: stages.count(stage) for stage in once} == dict.fromkeys(once, 1)
    assert run.kept("report.html")
