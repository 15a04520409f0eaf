"""Texts with several labels: read, trained, judged as scikit-learn does, published and served."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers

from jobs.errors import DataError
from jobs.tasks.text_classification.multi_label import labels, metrics
from jobs.training import quality
from jobs.training.corpus import load_corpus
from jobs.training.data.table import Table
from jobs.training.events import Proven
from orchestrator.records import registry
from serve.tasks.answers import Label
from serve.tasks.text_classification.multi_label.endpoint import compare
from serve.tools import client
from serve.version import ModelVersion
from tests.jobs.training import workers
from tests.tasks import text_problems
from tests.tasks.text_problems import WORDS, Trained, config_of, data_of, label_rows

pytestmark = pytest.mark.filterwarnings("ignore")
METRICS = (
    *("f1_micro", "f1_macro", "f1_samples", "exact_match", "average_precision"),
    *("roc_auc", "ece"),
)
CLOSE = 1e-3
"""Of scores of two engines."""
TEXTS = text_problems.mixed_texts(200)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_problems.write(tmp_path_factory.mktemp("labels"), label_rows)


@pytest.fixture(scope="module")
def run(rows: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    data = data_of(rows, problem="multi-label", label="labels")
    config = config_of(data, tiny_model, metrics=METRICS, epochs=20.0)
    return text_problems.trained(config, tmp_path_factory.mktemp("published"))


def scored(version: ModelVersion, texts: list[str]) -> np.ndarray:
    """Probabilities of plain transformers, text by text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(version.path).eval()
    with torch.no_grad():
        found = [
            model(**tokenizer(text, truncation=True, return_tensors="pt")).logits.sigmoid()[0]
            for text in texts
        ]
    return torch.stack(found).numpy()


def check_labels(given: list[dict[str, Any]], row: np.ndarray, version: ModelVersion) -> None:
    """The labels of a text have the expected scores, and are those over their thresholds."""
    found = {label["label"]: label["score"] for label in given}
    for name, score, least in zip(version.labels, row, version.thresholds, strict=True):
        if abs(score - least) > CLOSE:
            assert (name in found) == (score >= least)
        assert found.get(name, score) == pytest.approx(score, abs=CLOSE)


def truth() -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """Texts, labels as 1 and 0, and their names in the model's order."""
    names = tuple(sorted(WORDS))
    found = label_rows(text_problems.EVAL_ROWS, 2)
    wanted = np.array([[int(name in row["labels"]) for name in names] for row in found])
    return [row["text"] for row in found], wanted, names


def expected(true: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """scikit-learn's values."""
    given = (scores >= 0.5).astype(int)
    f1 = sklearn.metrics.f1_score
    return {
        "f1_micro": f1(true, given, average="micro", zero_division=0),
        "f1_macro": f1(true, given, average="macro", zero_division=0),
        "f1_samples": f1(true, given, average="samples", zero_division=0),
        "exact_match": sklearn.metrics.accuracy_score(true, given),
        "average_precision": sklearn.metrics.average_precision_score(true, scores),
        "roc_auc": sklearn.metrics.roc_auc_score(true, scores),
    }


def test_lists_separated_text_and_columns_are_read_alike(tmp_path: Path) -> None:
    found = label_rows(30, 4)
    text = [" | ".join(row["labels"]) for row in found]
    columns = {name: [str(bool(row[name])).lower() for row in found] for name in WORDS}
    table = Table({"list": [row["labels"] for row in found], "text": text, **columns})
    ways: list[dict[str, Any]] = [
        {"label": "list"},
        {"label": "text", "separator": "|"},
        {"label": tuple(WORDS)},
    ]
    wanted = [tuple(row["labels"]) for row in found]
    for fields in ways:
        data = data_of(tmp_path, problem="multi-label", **{**fields, "text": "words"})
        read = labels.read(table, data, "rows")
        assert read == wanted
        assert set(labels.names_of(table, data, read)) == set(WORDS)


@pytest.mark.parametrize(
    ("value", "fields", "message"),
    [
        ("a,b", {"label": "c"}, "if they are in one text, name what is between them with data.sep"),
        (None, {"label": "c"}, "holds None; a row has a list of labels"),
        ([1.5], {"label": "c"}, "lists 1.5; a label is an integer or a string"),
        ("2", {"label": ("c", "d")}, "holds '2'; a column that stands for a label holds 1"),
    ],
)
def test_other_values_are_refused(value: Any, fields: Any, message: str, tmp_path: Path) -> None:
    data = data_of(tmp_path, problem="multi-label", **fields)
    with pytest.raises(DataError, match="rows row 1: column 'c'") as caught:
        labels.read(Table({"c": [value], "d": ["1"]}), data, "rows")
    assert message in str(caught.value)


def test_metrics_are_those_of_scikit_learn_on_the_published_models_predictions(
    run: Trained,
) -> None:
    texts, true, names = truth()
    assert run.version.labels == names
    scores = scored(run.version, texts)
    found = expected(true, scores)
    assert {name: run.metrics[name] for name in found} == pytest.approx(found, abs=1e-6)
    assert run.metrics["f1_micro"] > 0.8
    assert 0 < run.metrics["ece"] < 0.2
    (proof,) = [event for event in run.events if isinstance(event, Proven)]
    assert (proof.refusal, proof.rows) == ("", text_problems.EVAL_ROWS)


@pytest.mark.workers
@pytest.mark.parametrize("count", [2, 3])
def test_metrics_are_the_same_on_any_number_of_workers(
    count: int, rows: Path, tiny_model: str, tmp_path: Path
) -> None:
    data = data_of(rows, problem="multi-label", label="labels", class_weights="balanced")
    fields = {"epochs": 1.0, "metrics": METRICS, "global_batch_size": 24, "micro_batch_size": 4}
    config = config_of(data, tiny_model, **fields)
    alone = workers.run(config, 1, tmp_path, tmp_path / "one")
    found = workers.run(config, count, tmp_path, tmp_path / "several")
    judged = [
        [event["metrics"] for event in events if event["event"] == "Evaluated"][-1]
        for events in (alone, found)
    ]
    assert judged[1] == pytest.approx(judged[0], abs=1e-5)


def test_thresholds_are_tuned_and_published(run: Trained) -> None:
    texts, true, _ = truth()
    scores = scored(run.version, texts)
    version = run.version
    found = json.loads((Path(version.path) / quality.FILE).read_text(encoding="utf-8"))
    assert tuple(found["thresholds"][label] for label in version.labels) == version.thresholds
    again = registry.every(_storage(version))[0][0]
    assert again.thresholds == version.thresholds
    f1 = sklearn.metrics.f1_score
    for number, (name, threshold) in enumerate(
        zip(version.labels, version.thresholds, strict=True)
    ):
        tuned = f1(true[:, number], scores[:, number] >= threshold)
        assert tuned >= f1(true[:, number], scores[:, number] >= 0.5)
        if true[:, number].sum() < metrics.FEWEST:
            assert (name, threshold) == ("rare", 0.5)


def _storage(version: ModelVersion) -> Any:
    from jobs.storage.storage import open_storage

    return open_storage(Path(version.path).parents[2])


def test_a_threshold_is_the_best_of_all() -> None:
    draw = np.random.default_rng(3)
    true = draw.random((200, 3)) < (0.5, 0.1, 0.01)
    scores = np.clip(true * 0.2 + draw.random((200, 3)) * 0.5, 0, 1).astype(np.float32)
    found = metrics.best_thresholds(scores, true)
    for column in range(2):
        candidates = [
            metrics.f1_of(scores[:, column] >= least, true[:, column])
            for least in np.unique(scores[:, column])
        ]
        reached = metrics.f1_of(scores[:, column] >= found[column], true[:, column])
        assert reached == max(candidates)
    assert found[2] == metrics.THRESHOLD


def test_pipelines_of_transformers_give_every_label_its_probability(run: Trained) -> None:
    pipe = transformers.pipeline("text-classification", run.version.path, top_k=None)
    scores = scored(run.version, TEXTS)
    for row, found in zip(scores, pipe(TEXTS, truncation=True), strict=True):
        by_name = {each["label"]: each["score"] for each in found}
        assert [by_name[name] for name in run.version.labels] == pytest.approx(row, abs=1e-5)
    config = json.loads((Path(run.version.path) / "config.json").read_text(encoding="utf-8"))
    assert config["problem_type"] == "multi_label_classification"


@pytest.mark.parametrize("engine", ["torch-fp32", "openvino-fp32", "onnx-fp32"])
def test_the_endpoint_answers_with_the_labels_over_their_thresholds(
    engine: Any, run: Trained
) -> None:
    version, scores = run.version, scored(run.version, TEXTS)
    with text_problems.served(version, engine) as url:
        found = text_problems.answer(url, {"inputs": TEXTS}).json()
        for text, row, own in zip(TEXTS, scores, found, strict=True):
            alone = text_problems.answer(url, {"inputs": text}).json()
            assert own == sorted(own, key=lambda label: -label["score"])
            check_labels(own, row, version)
            check_labels(alone, row, version)
        two = text_problems.answer(url, {"inputs": "film", "top_k": 2}).json()
        assert len(two) == 2
        model = httpx.get(f"{url}/health").json()
        assert (model["problem"], model["task"]) == ("multi-label", version.task)
        predicted = client.predict(url, TEXTS, {})
        assert [len(labels) for labels in predicted] == list(map(len, found))
        assert all(isinstance(label, Label) for labels in predicted for label in labels)
        outputs = text_problems.outputs_of(url, TEXTS)
        given = np.array(outputs["given"]["data"]).reshape(scores.shape)
        clear = np.abs(scores - version.thresholds) > CLOSE
        assert (given == (scores >= version.thresholds))[clear].all()
        assert outputs["scores"]["shape"] == [len(TEXTS), len(version.labels)]
        assert text_problems.failed_under_load(url, TEXTS) == 0
        assert {200, 422} <= text_problems.statuses_of_made_up_requests(url) <= {200, 400, 422}
        metrics_of_both = text_problems.compared(version, url).metrics
        assert metrics_of_both["agreement"].value == 1.0
        assert metrics_of_both["f1_micro"].value == 0.0


def test_a_worse_version_is_told_from_chance() -> None:
    draw = np.random.default_rng(0)
    right = draw.random((200, 4)) < 0.3
    flip, other = draw.random((2, 200, 4))
    worse = compare(right ^ (flip < 0.1), right ^ (flip < 0.3), right)
    assert worse.metrics["f1_micro"].value < -0.1
    assert not worse.metrics["f1_micro"].is_chance
    same = compare(right ^ (flip < 0.1), right ^ (other < 0.1), right)
    assert same.metrics["f1_micro"].is_chance


def test_weights_and_smoothing_change_the_loss_as_torch_defines_it(
    rows: Path, tiny_model: str
) -> None:
    from jobs.training.session import build_session
    from jobs.training.world import World

    found = {}
    for name, fields in {
        "plain": {},
        "weighted": {"class_weights": "balanced"},
        "named": {"class_weights": {"sad": 3.0}, "label_smoothing": 0.1},
    }.items():
        data = data_of(rows, problem="multi-label", label="labels", **fields)
        config = config_of(data, tiny_model)
        session = build_session(config, load_corpus(config), World(0, 1, torch.device("cpu")))
        batch = session.eval_store.gather(torch.arange(8), 24)
        with torch.no_grad():
            session.model.eval()
            logits = session.model(**{k: v for k, v in batch.items() if k != "labels"}).logits
            found[name] = float(session.training.loss(session.model, batch, torch.ones(8)))
        have = session.corpus.train.labels.sum(axis=0)
        weights = {
            "plain": torch.ones(4),
            "weighted": torch.tensor((len(session.corpus.train) - have) / have).float(),
            "named": torch.tensor([3.0 if n == "sad" else 1.0 for n in sorted(WORDS)]),
        }[name]
        target = batch["labels"].float()
        target = target * 0.9 + 0.05 if name == "named" else target
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, target, pos_weight=weights, reduction="none"
        )
        assert found[name] == pytest.approx(float(losses.mean(dim=1).sum()), rel=1e-5)
    assert len(set(found.values())) == 3
