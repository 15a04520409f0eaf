"""Problems of text-classification: what a job file may say, and the metrics of single labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
import yaml

from jobs.errors import JobFileError, TaskError
from jobs.loader import load
from jobs.loader.rows import rows_suit_the_job
from jobs.spec import task_registry
from jobs.spec.model import ModelSpec
from jobs.tasks.text_classification import calibration, metrics, ranking, reports
from jobs.tasks.text_classification.training import ClassificationTraining
from orchestrator.decisions.resolve import Execution, training_config
from tests.jobs.training import workers
from tests.tasks import text_problems
from tests.tasks.text_problems import config_of, data_of, label_rows, number_rows

pytestmark = pytest.mark.filterwarnings("ignore")
EACH = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "f1_macro", "f1_weighted")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of several labels, and one below it with numbers."""
    folder = text_problems.write(tmp_path_factory.mktemp("rows"), label_rows)
    text_problems.write(folder / "numbers", number_rows)
    return folder


def problems(folder: Path, base: str, data: dict[str, Any], **sections: Any) -> list[str]:
    """What is refused of a job, with line and column."""
    path = folder / "job.yaml"
    splits = {split: {"path": f"{split}.jsonl"} for split in ("train", "eval")}
    job = {
        "version": 1,
        "name": "films",
        "model": {"base": base, "task": "text-classification"},
        "data": {**splits, "text": "text", "max_length": 24, **data},
        **sections,
    }
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    try:
        load(path, extra_rules=(rows_suit_the_job(folder),))
    except JobFileError as error:
        return [str(problem).removeprefix(f"{path}:") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"problem": "multilabel"},
            "13:12: data.problem: 'multilabel' is not one of single-label, multi-label, regression;"
            " did you mean 'multi-label'?",
        ),
        (
            {"label": "labels"},
            "13:10: data.label: train.jsonl row 1: column 'labels' holds ['funny']; a label is an"
            " integer or a string; text-classification learns several labels for a row with",
        ),
        (
            {"label": ["funny", "sad"]},
            "14:3: data.label: names 2 columns, and a row has one label; name one column",
        ),
        (
            {"problem": "multi-label", "label": "funny"},
            "14:10: data.label: train.jsonl row 1: column 'funny' holds ",
        ),
        (
            {"problem": "multi-label", "label": ["funny", "text"]},
            "16:5: data.label[1]: column 'text' is already a text column",
        ),
        (
            {"problem": "multi-label", "label": ["funny", "funny"]},
            "16:5: data.label[1]: column 'funny' is listed twice; remove one",
        ),
        (
            {"problem": "multi-label", "label": ["funny", "sad"], "separator": ","},
            "17:14: data.separator: splits one column, and data.label names several",
        ),
        (
            {"problem": "multi-label", "label": "labels", "positive": "sad"},
            "15:13: data.positive: is for problem: single-label; the problem is multi-label",
        ),
        (
            {"problem": "multi-label", "label": "labels", "class_weights": {"sat": 2.0}},
            "16:5: data.class_weights: 'sat' is no label of the training rows",
        ),
        (
            {"problem": "regression", "label": "labels"},
            "14:10: data.label: train.jsonl row 1: column 'labels' holds ",
        ),
        (
            {"problem": "regression", "label": "funny", "class_weights": "balanced"},
            "15:18: data.class_weights: is for problem: single-label or multi-label; the problem is"
            " regression",
        ),
        (
            {"problem": "regression", "label": "funny", "label_smoothing": 0.1},
            "15:20: data.label_smoothing: is for problem: single-label or multi-label",
        ),
        (
            {"label": "funny", "loss": "huber"},
            "14:9: data.loss: is for problem: regression; the problem is single-label",
        ),
        (
            {"label": "funny", "positive": 2},
            "14:13: data.positive: '2' is no label of the training rows (1, 0)",
        ),
    ],
)
def test_options_columns_and_rows_of_another_problem_are_refused(
    data: dict[str, Any], message: str, rows: Path, tiny_model: str
) -> None:
    found = problems(rows, tiny_model, data)
    assert any(text.startswith(message) for text in found), found


@pytest.mark.parametrize(
    ("problem", "label", "metric"),
    [
        ("multi-label", "labels", "accuracy"),
        ("regression", "funny", "f1"),
        ("single-label", "funny", "rmse"),
    ],
)
def test_metrics_belong_to_the_problem(
    problem: str, label: str, metric: str, rows: Path, tiny_model: str
) -> None:
    data = {"problem": problem, "label": label}
    found = problems(rows, tiny_model, data, train={"eval": {"metrics": [metric]}})
    name = {"single-label": ""}.get(problem, f"/{problem}")
    assert f"'{metric}' is not a metric of text-classification{name}; it has " in found[0]
    assert found[0].split(":")[0].isdigit()


def test_directions_and_gates_belong_to_the_problem(rows: Path, tiny_model: str) -> None:
    data = {"problem": "regression", "label": "funny"}
    sweep = {"search_space": {"train.optimizer.lr": [1e-3]}, "objective": {"maximize": "rmse"}}
    found = problems(rows, tiny_model, data, sweep=sweep)
    assert "rmse is better when lower; write `minimize: rmse`" in found[0]
    serve = {"route": "/a", "rollout": {"gate": ["accuracy>=-0.01"]}}
    found = problems(rows, tiny_model, data, serve=serve)
    assert "accuracy is not judged for text-classification/" in found[0]
    serve["rollout"] = {"gate": ["rmse<=1.05"]}
    assert problems(rows, tiny_model, data, serve=serve) == []


def test_a_job_trains_the_variant_that_its_data_section_chooses(
    rows: Path, tiny_model: str
) -> None:
    assert (
        problems(rows / "numbers", tiny_model, {"problem": "regression", "label": "rating"}) == []
    )
    spec = load(rows / "numbers/job.yaml")
    assert spec.metrics == ("rmse", "r2")
    assert spec.task.name == "text-classification/regression"
    config = training_config(spec, Execution(8, "fp32", "cpu"), {"train.optimizer.lr": 1e-3})
    assert (config.model.task, spec.model.task) == (spec.task.name, "text-classification")
    again = config_of(config.data, tiny_model, model=ModelSpec(base=tiny_model))
    assert again.model.task == spec.task.name


def test_a_variant_is_found_by_its_name_and_is_no_task_of_its_own(
    rows: Path, tiny_model: str
) -> None:
    assert task_registry.find("text-classification/multi-label").activation == "sigmoid"
    assert not any("/" in name for name in task_registry.names())
    with pytest.raises(TaskError, match="has no variant 'multi-label'; known are"):
        task_registry.chosen("causal-lm", "multi-label")
    with pytest.raises(TaskError, match="is no task"):
        task_registry.find("text-classification/ordinal")
    model = {"base": tiny_model, "task": "text-classification/regression"}
    found = problems(rows, tiny_model, {"label": "funny"}, model=model)
    assert (
        "makes the task text-classification, and model.task is text-classification/reg" in found[0]
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_a_confusion_matrix_are_those_of_scikit_learn(seed: int, classes: int) -> None:
    draw = np.random.default_rng(seed)
    true, given = draw.integers(0, classes, 60), draw.integers(0, classes, 60)
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (true, given), 1)
    average = "binary" if classes == 2 else "macro"
    several = sklearn.metrics.precision_recall_fscore_support
    precision, recall, f1, _ = several(true, given, average=average, zero_division=0)
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(true, given),
        "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(true, given),
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "f1_macro": sklearn.metrics.f1_score(true, given, average="macro"),
        "f1_weighted": sklearn.metrics.f1_score(true, given, average="weighted"),
    }
    found = metrics.compute(table)
    assert {name: found[name] for name in EACH} == pytest.approx(expected)
    of_first = several(true, given, labels=[0], zero_division=0)
    found = metrics.compute(table, positive=0)
    assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx(
        [float(values[0]) for values in of_first[:3]]
    )


@pytest.mark.parametrize("seed", range(4))
def test_metrics_of_an_order_are_those_of_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 12, (80, 3)) / 12  # many of them are equal
    true = draw.random((80, 3)) < 0.3
    for column in range(3):
        pair = true[:, column], scores[:, column]
        assert ranking.roc_auc(*pair) == pytest.approx(sklearn.metrics.roc_auc_score(*pair))
        expected = sklearn.metrics.average_precision_score(*pair)
        assert ranking.average_precision(*pair) == pytest.approx(expected)
    assert ranking.roc_auc([True, True], [0.1, 0.2]) == ranking.CHANCE
    assert ranking.average_precision([False, False], [0.1, 0.2]) == 0.0
    classes = scores / scores.sum(axis=1, keepdims=True).clip(min=1e-9)
    classes[:, 0] += 1 - classes.sum(axis=1)
    wanted = draw.integers(0, 3, 80)
    found = ClassificationTraining().score_metrics(classes, wanted, ("a", "b", "c"))
    expected = sklearn.metrics.roc_auc_score(wanted, classes, multi_class="ovr")
    assert found["roc_auc"] == pytest.approx(expected)


def test_calibration_error_is_that_of_its_definition() -> None:
    draw = np.random.default_rng(1)
    probabilities, is_right = draw.random(500), draw.random(500) < 0.6
    edges = np.linspace(0, 1, calibration.BINS + 1)
    bins = np.clip(np.digitize(probabilities, edges) - 1, 0, calibration.BINS - 1)
    expected = sum(
        abs(probabilities[bins == n].mean() - is_right[bins == n].mean()) * (bins == n).mean()
        for n in np.unique(bins)
    )
    parts = [
        calibration.sums(
            torch.from_numpy(probabilities[part]), torch.from_numpy(is_right[part]), torch.ones(n)
        )
        for part, n in ((slice(0, 200), 200), (slice(200, 500), 300))
    ]
    assert calibration.ece(sum(parts).numpy()) == pytest.approx(expected)
    found = calibration.curve("c", sum(parts).numpy())
    assert sum(point.count for point in found.points) == 500


def test_a_report_lists_the_worst_mistakes_first() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.95, 0.05], [0.6, 0.4]], np.float32)
    labels = np.array([0, 0, 1, 1])
    made = reports.of_single_labels(scores, labels, ("no", "yes"), lambda row: f"text {row}")
    confusion, each, worst = made.tables
    assert confusion.rows == (("no", 1, 1), ("yes", 2, 0))
    assert [row[:2] for row in each.rows] == [("no", 2), ("yes", 2)]
    assert [(row[0], row[1], row[3]) for row in worst.rows] == [
        ("text 2", "yes", "no"),
        ("text 1", "no", "yes"),
        ("text 3", "yes", "no"),
    ]


@pytest.mark.workers
@pytest.mark.parametrize("count", [2, 3])
def test_single_label_metrics_are_the_same_on_any_number_of_workers(
    count: int, rows: Path, tiny_model: str, tmp_path: Path
) -> None:
    data = data_of(rows, label="funny", class_weights={"1": 2.0}, label_smoothing=0.1, positive=0)
    names = (*EACH, "mcc", "roc_auc", "ece")
    sizes = {"epochs": 1.0, "global_batch_size": 24, "micro_batch_size": 4}
    config = config_of(data, tiny_model, metrics=names, **sizes)
    judged = []
    for number in (1, count):
        events = workers.run(config, number, tmp_path, tmp_path / str(number))
        judged.append([each["metrics"] for each in events if each["event"] == "Evaluated"][-1])
    assert judged[1] == pytest.approx(judged[0], abs=1e-5)
    assert set(judged[0]) == {*names, "loss"}
