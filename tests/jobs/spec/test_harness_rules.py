"""Tasks of lm-evaluation-harness in a job file: their forms, and what may name their metrics."""

from typing import Any

import pytest

from jobs.errors import JobFileError
from jobs.loader import loads
from jobs.spec import JobSpec
from jobs.spec.harness import metric_name

JOB = """\
version: 1
name: chat
model: {{base: org/model, task: {task}}}
data: {{train: {{path: org/train}}, eval: {{path: org/eval}}, {columns}}}
train: {{eval: {{harness: {harness}, every: 1epoch{metrics}}}{train}}}
{rest}
"""
SWEEP = "sweep: {{search_space: {{train.optimizer.lr: [1e-5, 2e-5]}}, objective: {{{}}}}}"
GATE = "serve: {{route: /chat, rollout: {{gate: ['{}']}}}}"


def job(harness: str = "[gsm8k, hellaswag]", rest: str = "", **fields: str) -> JobSpec:
    values = {"task": "causal-lm", "columns": "messages: messages", "train": "", "metrics": ""}
    return loads(JOB.format(**{**values, **fields}, harness=harness, rest=rest))


def refusal(*arguments: str, **fields: Any) -> str:
    with pytest.raises(JobFileError) as caught:
        job(*arguments, **fields)
    return str(caught.value)


def test_a_list_is_short_for_the_tasks_of_a_mapping() -> None:
    plain, mapping = job("[gsm8k]"), job("{tasks: [gsm8k]}")
    assert plain == mapping
    assert plain.train.eval.harness is not None
    assert plain.train.eval.harness.tasks == ("gsm8k",)
    again = JobSpec.model_validate(plain.model_dump(mode="json", exclude_unset=True))
    assert again == plain


@pytest.mark.parametrize(
    ("harness", "words"),
    [
        ("[]", "train.eval.harness: has 0 items but needs at least 1"),
        ("gsm8k", "train.eval.harness: 'gsm8k' is not a list of tasks; write [gsm8k]"),
        ("[3]", "train.eval.harness[0]: 3 is not text"),
        ("{tasks: [gsm8k], limt: 3}", "unknown key; did you mean 'limit'?"),
        ("{tasks: [gsm8k], limit: 2.5}", "harness.limit: 2.5 is not a whole number or 2.5 must"),
    ],
)
def test_what_is_no_list_of_tasks_is_told(harness: str, words: str) -> None:
    assert words in refusal(harness)


@pytest.mark.parametrize(
    ("task", "columns"), [("seq2seq", "source: a, target: b"), ("text-classification", "text: a")]
)
def test_models_that_continue_no_text_have_no_harness(task: str, columns: str) -> None:
    found = refusal(task=task, columns=columns)
    assert f"{task} has no language model to judge" in found
    assert "it is for causal-lm, preference" in found


def test_preference_models_have_one() -> None:
    assert job(task="preference", columns="chosen: a, rejected: b").train.eval.harness


def test_a_limit_may_name_a_metric_of_a_listed_task() -> None:
    name = "gsm8k/exact_match/strict-match"
    spec = job(rest=SWEEP.format(f"minimize: cost, subject_to: {{'{name}': '>=0.3'}}"))
    assert spec.sweep is not None
    assert spec.sweep.objective.subject_to[name].value == 0.3


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("subject_to: {'gsmk8/acc': '>=0.3'}", "needs the task 'gsmk8' in train.eval.harness"),
        ("subject_to: {gsm8k: '>=0.3'}", "is a task of the harness; name one of its metrics"),
        ("subject_to: {'gsm8k/acc': '<=30m'}", "has the wrong unit for gsm8k/acc"),
        ("maximize: gsm8k/acc", "is known after training alone"),
        ("minimize: gsm8k/acc", "is known after training alone"),
    ],
)
def test_a_sweep_cannot_search_by_what_is_known_after_training(objective: str, words: str) -> None:
    first = "" if "imize" in objective else "minimize: cost, "
    assert words in refusal(rest=SWEEP.format(first + objective))


def test_evaluations_while_training_have_no_metrics_of_the_harness() -> None:
    assert "name it in sweep.objective.subject_to" in refusal(metrics=", metrics: [gsm8k/acc]")
    stopping = ", early_stopping: {metric: gsm8k/acc}"
    assert "name it in sweep.objective.subject_to" in refusal(train=stopping)


def test_a_gate_may_name_a_metric_of_a_listed_task_alone() -> None:
    spec = job(rest=GATE.format("hellaswag/acc_norm>=-0.01"))
    assert spec.serve is not None
    assert spec.serve.rollout is not None
    (rule,) = spec.serve.rollout.gate
    assert (rule.name, str(rule.bound)) == ("hellaswag/acc_norm", ">=-0.01")
    assert "needs the task 'mmlu' in train.eval.harness" in refusal(rest=GATE.format("mmlu/acc>=0"))


def test_a_budget_leaves_time_to_train() -> None:
    harness = "{tasks: [gsm8k], max_duration: 2h}"
    assert job(harness, "budget: {max_duration: 3h}").train.eval.harness_s == 7200
    found = refusal(harness, "budget: {max_duration: 2h}")
    assert "max_duration: is all of budget.max_duration (2h); leave time to train" in found


def test_names_suit_every_tracker() -> None:
    assert metric_name("hellaswag", "acc_norm,none") == "hellaswag/acc_norm"
    assert metric_name("gsm8k", "exact_match,strict-match") == "gsm8k/exact_match/strict-match"
    assert metric_name("a_(b)", "acc,none") == "a__b_/acc"
