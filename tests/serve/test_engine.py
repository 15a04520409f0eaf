"""The engine gives what transformers gives, whatever stands beside a text in its batch."""

from pathlib import Path

import pytest
import torch
import transformers

from jobs.errors import CheckpointError
from jobs.training.loop import train
from orchestrator.records import registry
from serve.engine import Engine
from serve.version import ModelVersion
from tests.builders import job, training_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TEXTS = [("a superb film",), ("dull " * 40,), ("x",), ("a moving and fresh and brilliant film",)]


@pytest.fixture(scope="module")
def version(
    reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> ModelVersion:
    """A tiny model that was trained and published."""
    folder = tmp_path_factory.mktemp("published")
    config = training_config(reviews, tiny_model)
    reference = train(config, lambda _: None, folder / "checkpoints")
    spec = job(data__max_length=32)
    return registry.publish(
        spec, reference, ("negative", "positive"), run_id="test", storage=folder
    )


def test_scores_equal_those_of_transformers(version: ModelVersion) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(version.path).eval()
    answers = Engine(version, precision="fp32", device="cpu").predict(TEXTS)
    for (text,), answer in zip(TEXTS, answers, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=32, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**inputs).logits.softmax(dim=-1)[0]
        assert answer.label == model.config.id2label[int(expected.argmax())]
        assert answer.score == pytest.approx(float(expected.max()), abs=1e-5)


def test_neighbours_do_not_change_a_score(version: ModelVersion) -> None:
    engine = Engine(version, precision="fp32", device="cpu")
    together = engine.predict(TEXTS)
    alone = [engine.predict([text])[0] for text in TEXTS]
    for one, other in zip(together, alone, strict=True):
        assert one.label == other.label
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_altered_weights_are_not_served(version: ModelVersion, tmp_path: Path) -> None:
    import dataclasses
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(version.path, copy)
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors was altered"):
        Engine(dataclasses.replace(version, path=str(copy)), precision="fp32", device="cpu")


def test_a_published_version_can_be_read_back(version: ModelVersion) -> None:
    storage = Path(version.path).parents[2]
    assert registry.read(storage, version.name) == version
    assert "accuracy" in (Path(version.path) / "README.md").read_text(encoding="utf-8")
