"""Texts with numbers: standardised in training, restored in the published model, and served."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
import transformers

from jobs.errors import DataError, ModelError
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec
from jobs.tasks.text_classification.regression import targets
from jobs.tasks.text_classification.regression.training import output_layer
from jobs.training import eval_sample
from jobs.training.data.table import Table
from jobs.training.events import Evaluated, Proven, Stepped
from jobs.training.loop import train
from serve.tasks.answers import Values
from serve.tasks.text_classification.regression.endpoint import compare
from serve.tools import client
from serve.version import ModelVersion
from tests import tiny
from tests.jobs.training import workers
from tests.tasks import text_problems
from tests.tasks.text_problems import Trained, config_of, data_of, number_rows

pytestmark = pytest.mark.filterwarnings("ignore")
METRICS = ("rmse", "r2", "mse", "mae", "pearson", "spearman")
TEXTS = text_problems.mixed_texts(200)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_problems.write(tmp_path_factory.mktemp("numbers"), number_rows)


@pytest.fixture(scope="module", params=["rating", ("rating", "words")], ids=["one", "two"])
def run(
    request: pytest.FixtureRequest,
    rows: Path,
    tiny_model: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    data = data_of(rows, problem="regression", label=request.param)
    config = config_of(data, tiny_model, metrics=METRICS)
    return text_problems.trained(config, tmp_path_factory.mktemp("published"))


def scored(version: ModelVersion, texts: list[str]) -> np.ndarray:
    """Outputs of plain transformers, text by text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(version.path).eval()
    with torch.no_grad():
        found = [
            model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0]
            for text in texts
        ]
    return torch.stack(found).double().numpy()


def test_metrics_are_those_of_the_libraries_on_the_published_models_numbers(run: Trained) -> None:
    held_back = number_rows(text_problems.EVAL_ROWS, 2)
    names = run.version.labels
    true = np.array([[row[name] for name in names] for row in held_back])
    given = scored(run.version, [row["text"] for row in held_back])
    correlations = {
        "pearson": [scipy.stats.pearsonr(a, b).statistic for a, b in zip(true.T, given.T)],  # noqa: B905 - of one shape
        "spearman": [scipy.stats.spearmanr(a, b).statistic for a, b in zip(true.T, given.T)],  # noqa: B905 - of one shape
    }
    expected = {
        "rmse": sklearn.metrics.root_mean_squared_error(true, given),
        "r2": sklearn.metrics.r2_score(true, given),
        "mse": sklearn.metrics.mean_squared_error(true, given),
        "mae": sklearn.metrics.mean_absolute_error(true, given),
        **{name: np.mean(values) for name, values in correlations.items()},
    }
    found = {name: run.metrics[name] for name in expected}
    assert found == pytest.approx(expected, rel=2e-4)
    assert found["r2"] > 0.3
    (proof,) = [event for event in run.events if isinstance(event, Proven)]
    assert (proof.refusal, proof.rows) == ("", text_problems.EVAL_ROWS)
    judged = [event.metrics["rmse"] for event in run.events if isinstance(event, Evaluated)]
    assert judged[-1] < judged[0]


def test_the_published_model_gives_numbers_in_their_unit_to_pipelines(run: Trained) -> None:
    pipe = transformers.pipeline("text-classification", run.version.path, top_k=None)
    given = scored(run.version, TEXTS)
    assert (np.abs(given[:, 0] - 1000) < 300).all()
    for row, found in zip(given, pipe(TEXTS, truncation=True), strict=True):
        by_name = {each["label"]: each["score"] for each in found}
        assert [by_name[name] for name in run.version.labels] == pytest.approx(row, rel=1e-5)
    config = json.loads((Path(run.version.path) / "config.json").read_text(encoding="utf-8"))
    assert config["problem_type"] == "regression"
    sample = eval_sample.read(Path(run.version.path))
    assert eval_sample.spread_of(sample)[0] == pytest.approx(
        np.std([row.label[0] for row in sample])  # type: ignore[index]
    )


@pytest.mark.workers
@pytest.mark.parametrize("count", [2, 3])
def test_metrics_are_the_same_on_any_number_of_workers(
    count: int, rows: Path, tiny_model: str, tmp_path: Path
) -> None:
    data = data_of(rows, problem="regression", label=("rating", "words"), loss="huber")
    fields = {"epochs": 1.0, "metrics": METRICS, "global_batch_size": 24, "micro_batch_size": 4}
    config = config_of(data, tiny_model, **fields)
    judged = []
    for number in (1, count):
        events = workers.run(config, number, tmp_path, tmp_path / str(number))
        judged.append([each["metrics"] for each in events if each["event"] == "Evaluated"][-1])
    assert judged[1] == pytest.approx(judged[0], rel=1e-3)


def test_a_run_resumes_with_the_weights_that_it_trained(
    rows: Path, tiny_model: str, tmp_path: Path
) -> None:
    data = data_of(rows, problem="regression", label="rating")
    saving = CheckpointSpec(every=Cadence(3.0, "step"), keep=9)
    config = config_of(data, tiny_model, epochs=2.0, metrics=METRICS, checkpoint=saving)
    whole: list[Any] = []
    train(config, whole.append, tmp_path / "whole")
    folder = tmp_path / "whole"
    for checkpoint in sorted(folder.glob("step-*"))[1:]:
        workers.remove(checkpoint)
    rest: list[Any] = []
    train(config, rest.append, folder)
    losses = [
        {event.step: event.loss for event in events if isinstance(event, Stepped)}
        for events in (whole, rest)
    ]
    assert min(losses[1]) == 4
    assert losses[1] == {step: losses[0][step] for step in losses[1]}


@pytest.mark.parametrize(("kind", "merge"), [("roberta", False), ("llama", True)])
def test_adapters_and_heads_without_a_bias_are_restored_too(
    kind: str,
    merge: bool,  # noqa: FBT001 - a parameter of the test
    rows: Path,
    tmp_path: Path,
) -> None:
    base = tiny.save(tmp_path / "base", kind, transformers.AutoModel)
    adapter = LoraSpec(type="lora", r=4, merge=merge)
    model = ModelSpec(base=base, adapter=adapter, dropout=0.0 if kind == "roberta" else None)
    data = data_of(rows, problem="regression", label="rating")
    config = config_of(data, base, model=model, epochs=2.0, metrics=("rmse",))
    events: list[Any] = []
    train(config, events.append, tmp_path / "checkpoints", proves=True)
    (proof,) = [event for event in events if isinstance(event, Proven)]
    assert proof.refusal == ""


def test_a_head_without_a_linear_layer_is_refused_by_name() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = torch.nn.Conv1d(4, 1, 1)

    with pytest.raises(ModelError, match="Odd has no linear layer that gives its 1 outputs"):
        output_layer(Odd(), 1)


@pytest.mark.parametrize("value", ["good", None, float("nan"), [1.0], ""])
def test_values_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match=r"rows row 2: column 'n' holds .*; a regression learns"):
        targets.read_column(Table({"n": ["1.5", value]}), "n", "rows")


@pytest.mark.parametrize("engine", ["torch-fp32", "openvino-fp32", "onnx-fp32"])
def test_the_endpoint_answers_with_numbers(engine: Any, run: Trained) -> None:
    version, expected = run.version, scored(run.version, TEXTS)
    with text_problems.served(version, engine) as url:
        found = text_problems.answer(url, {"inputs": TEXTS}).json()
        alone = [text_problems.answer(url, {"inputs": text}).json() for text in TEXTS]
        for replies in (found, alone):
            numbers = [list(row.get("values", row).values()) for row in replies]
            assert np.array(numbers) == pytest.approx(expected, rel=1e-3)
        assert text_problems.answer(url, {"inputs": "a", "top_k": 1}).status_code == 422
        assert httpx.get(f"{url}/health").json()["problem"] == "regression"
        predicted = client.predict(url, TEXTS, {})
        assert all(isinstance(each, Values) for each in predicted)
        if len(version.labels) == 1:
            values = [row["value"] for row in found]
            assert [each.value for each in predicted] == pytest.approx(values, rel=1e-5)
        (output,) = text_problems.outputs_of(url, TEXTS).values()
        assert output["shape"] == [len(TEXTS), len(version.labels)]
        assert output["data"] == pytest.approx(expected.ravel(), rel=1e-3)
        assert text_problems.failed_under_load(url, TEXTS) == 0
        assert {200, 422} <= text_problems.statuses_of_made_up_requests(url) <= {200, 400, 422}
        assert text_problems.compared(version, url).metrics["rmse"].value == 1.0


def test_a_worse_version_is_told_from_chance() -> None:
    draw = np.random.default_rng(0)
    right = draw.normal(size=(200, 1)) * 50
    noise = draw.normal(size=(200, 2)) * 10
    worse = compare(right + noise[:, :1], right + 2 * noise[:, 1:], right)
    assert worse.metrics["rmse"].value > 1.5
    assert not worse.metrics["rmse"].is_chance
    assert compare(right + noise[:, :1], right + noise[:, 1:], right).metrics["rmse"].is_chance
