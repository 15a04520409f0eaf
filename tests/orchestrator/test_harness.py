"""The harness stage of a run: its numbers are metrics, limits and records, and it runs once."""

import math
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import orchestrator as winnow
from cluster.session import Connection
from jobs.errors import InfeasibleError, JobFileError, TrainingError
from jobs.spec.job import BudgetSpec
from jobs.spec.publish import PublishSpec
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from jobs.training.events import CheckpointRef
from jobs.training.harness import HarnessResult
from orchestrator import hub, preflight
from orchestrator.context import Context
from orchestrator.decisions import budget
from orchestrator.decisions.budget import Spent
from orchestrator.decisions.select import Winner
from orchestrator.notices import Notice, Remark, StageFinished
from orchestrator.records import receipt as receipts
from orchestrator.records import receipt_text, registry, report, runs
from orchestrator.records.receipt import FitResult, Receipt
from serve.tasks.comparison import compare_harness
from tests import harness_tasks
from tests.builders import any_of, inventory, sweep
from tests.conftest import BAD, GOOD

CHOICE, TEXT = "film_choice/acc", "film_text/exact_match/whole"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness") / "tasks"
    return harness_tasks.write(folder, dict.fromkeys(GOOD + BAD, "no model writes this"))


def job(
    folder: Path, questions: Path, base: str, harness: Any, limit: str = "", **fields: Any
) -> winnow.JobSpec:
    """A small language model whose winner is tried at one learning rate."""
    limits = {"subject_to": {limit: ">=0.9"}} if limit else {}
    values = {
        "version": 1,
        "name": "film-chat",
        "model": {"base": base, "task": "causal-lm"},
        "data": {
            "train": {"path": str(questions / "train.jsonl")},
            "eval": {"path": str(questions / "eval.jsonl")},
            "prompt": "prompt",
            "response": "response",
            "max_length": 32,
        },
        "train": {
            "epochs": 1,
            "global_batch_size": 16,
            "micro_batch_size": 16,
            "precision": "fp32",
            "eval": {"harness": harness},
        },
        "resources": {"any_of": any_of("cpu:1")},
        "sweep": sweep(
            {"train.micro_batch_size": [16]},
            objective={"minimize": "time", **limits},
            probe={"warmup": "10ms", "duration": "100ms", "confirm": 0},
        ),
        "storage": str(folder / "storage"),
        **fields,
    }
    return winnow.load_job(values)


def problems(spec: winnow.JobSpec) -> list[str]:
    try:
        preflight.check(spec)
    except JobFileError as error:
        return [f"{found.path}: {found.message}" for found in error.problems]
    return []


def of_tasks(tasks: Path, *names: str) -> dict[str, Any]:
    return {"tasks": list(names or ("film_choice", "film_text")), "include_path": str(tasks)}


def test_tasks_and_metrics_are_looked_up_before_anything_is_tried(
    questions: Path, tiny_llama: str, tasks: Path, tmp_path: Path
) -> None:
    known = job(tmp_path, questions, tiny_llama, of_tasks(tasks), TEXT)
    assert problems(known) == []
    unknown = job(tmp_path, questions, tiny_llama, of_tasks(tasks, "film_choise", "film_text"))
    (found,) = problems(unknown)
    assert found.startswith("train.eval.harness: lm_eval has no task 'film_choise'; did you mean")
    assert "film_choice" in found
    metric = job(tmp_path, questions, tiny_llama, of_tasks(tasks), "film_text/exact_match")
    (found,) = problems(metric)
    assert found == (
        "sweep.objective.subject_to.film_text/exact_match: the harness measures no"
        " film_text/exact_match; it measures film_text/exact_match/whole,"
        " film_text/exact_match/letters"
    )


def test_a_job_needs_the_extra_and_the_folder_of_its_tasks(
    questions: Path, tiny_llama: str, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFileError, match=r"harness\.include_path: .*/tasks is no folder"):
        job(tmp_path, questions, tiny_llama, of_tasks(tmp_path / "tasks"))
    monkeypatch.setattr(preflight.harness, "PACKAGE", "no_such_package")
    named = [("train.eval.harness", "no_such_package", "eval", lambda _: True)]
    monkeypatch.setattr(preflight, "PACKAGES", named)
    assert problems(job(tmp_path, questions, tiny_llama, of_tasks(tasks))) == [
        "train.eval.harness: needs the package no_such_package; pip install 'raywinnow[eval]'"
    ]


def test_what_is_left_of_a_budget_is_a_time_for_the_harness() -> None:
    minutes = BudgetSpec.model_validate({"max_duration": "10m", "max_cost": 2.0})
    assert budget.remaining_s(minutes, Spent(420.0, 1.9), 1.0) == pytest.approx(180.0)
    assert budget.remaining_s(minutes, Spent(60.0, 1.9), 4.0) == pytest.approx(90.0)
    assert budget.remaining_s(minutes, Spent(900.0, 0.0), 1.0) == pytest.approx(-300.0)
    assert budget.remaining_s(None, Spent(900.0, 0.0), 1.0) is None


def test_a_gate_compares_what_the_harness_measured_of_both_versions() -> None:
    old = {"perplexity": 3.0, CHOICE: 0.5, TEXT: 0.25}
    found = compare_harness(old, {"perplexity": 2.0, CHOICE: 0.75})
    assert found.keys() == {CHOICE, TEXT}
    assert found[CHOICE].value == 0.25
    assert found[CHOICE].sentence == f"its {CHOICE} is 0.7500, and the old one's 0.5000"
    assert math.isnan(found[TEXT].value)  # keeps no bound
    assert found[TEXT].sentence == f"it has no {TEXT}, and the old one's is 0.2500"


class Told:
    """Keeps the notices of a run."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def __call__(self, notice: Notice) -> None:
        """Keep a notice."""
        self.notices.append(notice)

    def finished(self) -> list[str]:
        """Names of the stages that ended, in their order."""
        return [each.stage for each in self.notices if isinstance(each, StageFinished)]


def context_of(spec: winnow.JobSpec, told: Told) -> Context:
    """The newest run of a job, or a new one."""
    storage = open_storage(spec.storage)
    run = runs.newest_of(storage, spec) or runs.create(storage, spec, datetime.now(UTC))
    return Context(spec, run, storage, told, 0)


def spent(
    folder: Path, questions: Path, base: str, tasks: Path, limit: str
) -> tuple[Context, Told, Winner, FitResult]:
    """A trained run whose budget is used up."""
    told = Told()
    harness = of_tasks(tasks)
    spec = job(folder, questions, base, harness, limit, budget={"max_duration": "1m"})
    context = replace(context_of(spec, told), began=time.monotonic() - 60)
    (candidate,) = winnow.plan(spec, inventory=inventory(cpu=1)).candidates
    fit = FitResult(CheckpointRef("/there", 6, {"perplexity": 2.0}), (), 6, 50.0, 0, (), ())
    return context, told, Winner(candidate, {}, None, ""), fit


def test_a_model_without_numbers_is_published_if_no_limit_needs_them(
    questions: Path, tiny_llama: str, tasks: Path, tmp_path: Path
) -> None:
    from orchestrator.harness import harness_stage

    context, told, winner, fit = spent(tmp_path, questions, tiny_llama, tasks, "")
    found = harness_stage(context, winner, fit)
    assert found.checkpoint == fit.checkpoint
    assert context.run.value("harness", HarnessResult) == found.harness
    (said,) = (each.text for each in told.notices if isinstance(each, Remark))
    assert said == (
        "the harness measured nothing, and the run goes on: training used up the budget; set"
        " train.eval.harness.max_duration, so that it leaves time for the harness"
    )
    assert "no numbers, because training used up the budget" in receipt_text.receipt_text(
        receipts.write_receipt("run", winner, found, 0.0)
    )


def test_a_run_that_needs_numbers_tries_again_for_them(
    questions: Path, tiny_llama: str, tasks: Path, tmp_path: Path
) -> None:
    from orchestrator.harness import check_measured, harness_stage

    context, _, winner, fit = spent(tmp_path, questions, tiny_llama, tasks, TEXT)
    with pytest.raises(TrainingError, match=rf"needs {TEXT}. The model stays in /there, and --res"):
        harness_stage(context, winner, fit)
    assert context.run.read("harness", HarnessResult) is None
    other = replace(fit, harness=HarnessResult(values={CHOICE: 0.5}))
    with pytest.raises(InfeasibleError, match=rf"measured no {TEXT}, .* it measured {CHOICE}"):
        check_measured(context.spec, other)


def test_the_model_card_says_which_numbers_are_of_the_harness(
    questions: Path, tiny_llama: str, tasks: Path, tmp_path: Path
) -> None:
    storage = open_storage(tmp_path / "storage")
    spec = job(tmp_path, questions, tiny_llama, of_tasks(tasks))
    saved = tmp_path / "step-6"
    shutil.copytree(tiny_llama, saved / manifest.MODEL_DIR)
    manifest.write(saved, {})
    checkpoint = CheckpointRef(str(saved), 6, {"perplexity": 2.0, TEXT: 0.25})
    version = registry.publish(spec, checkpoint, (), run_id="run", storage=storage)
    card = (Path(version.path) / "README.md").read_text(encoding="utf-8")
    own, judged = card.split("| task of lm-evaluation-harness | value |\n| --- | --- |\n")
    assert own.endswith("| perplexity | 2.0000 |\n\n")
    assert judged.startswith(f"| {TEXT} | 0.2500 |\n\nInputs are cut")
    _, details = registry.described(storage, version.name, version.id)
    shown = hub.card_of(card, storage, version, details, PublishSpec(hub="team/film-chat"))
    found = {each.metric_type: each for each in huggingface_hub.ModelCard(shown).data.eval_results}
    assert (found[TEXT].dataset_name, found[TEXT].dataset_type) == (hub.HARNESS, "film_text")
    assert found["perplexity"].dataset_name == hub.ROWS
    assert "film_choice" in shown
    assert str(tasks) not in shown


@pytest.mark.ray
@pytest.mark.e2e
@pytest.mark.slow
def test_a_harness_judges_the_published_model_once_and_its_limit_holds(
    ray_cluster: Connection, questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    """Catches in whole runs: a failed harness that is recorded, a limit of its that is not kept."""
    from orchestrator import pipeline

    tasks = harness_tasks.write(tmp_path / "tasks", dict.fromkeys(GOOD + BAD, "no"))
    (tasks / "texts.jsonl").rename(tasks / "later.jsonl")
    spec = job(tmp_path, questions, tiny_llama, of_tasks(tasks), TEXT)
    failing, told, again = Told(), Told(), Told()
    with pytest.raises(TrainingError, match=r"rows of its tasks cannot be read.*--resume tries"):
        pipeline.run(context_of(spec, failing))
    assert failing.finished()[-1] == "fit"

    (tasks / "later.jsonl").rename(tasks / "texts.jsonl")
    with pytest.raises(InfeasibleError, match=rf"limits \({TEXT} 0.0000 is not >=0.9\)"):
        pipeline.run(context_of(spec, told))
    assert told.finished()[-2:] == ["harness", "publish"]
    assert "fit" not in told.finished()
    (run,) = runs.every(open_storage(spec.storage))
    check_records(run, spec.name)

    with pytest.raises(InfeasibleError, match="limits"):
        pipeline.run(context_of(spec, again))
    assert "harness" not in again.finished()


def check_records(run: runs.Run, name: str) -> None:
    """The numbers are in the run's receipt and report, and on the version's card."""
    found, receipt = run.value("harness", HarnessResult), run.value("receipt", Receipt)
    assert found.rows == {"film_choice": 10, "film_text": 10}
    assert 0 <= found.values[CHOICE] <= 1
    assert receipt.metrics == {**run.value("fit", FitResult).checkpoint.metrics, **found.values}
    assert receipt.harness == found
    text = receipt_text.receipt_text(receipt)
    assert f"{TEXT} 0.0000 \N{PLUS-MINUS SIGN} 0.0000" in text
    assert "film_choice on 10 rows, film_text on 10 rows" in text
    page = (run.folder / report.PAGE).read_text(encoding="utf-8")
    assert "lm-evaluation-harness took" in page
    assert TEXT in page
    version = registry.read(run.storage, name)
    assert version.metrics == receipt.metrics
    assert f"| {TEXT} | 0.0000 |" in (Path(version.path) / "README.md").read_text(encoding="utf-8")
