"""Only engines that reproduce training's scores serve, for every architecture."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from jobs.errors import DeployError
from jobs.spec.model import ModelSpec
from jobs.spec.serve import EngineName
from jobs.spec.train import OptimizerSpec
from jobs.training import eval_sample
from jobs.training.loop import train
from serve.batching.rows import Tokenizer
from serve.engines import acceptance, selection
from serve.engines.captured_engine import CapturedEngine
from serve.engines.engine_factory import EngineFactory, read_eval_sample
from serve.engines.torch_engine import TorchEngine
from tests import tiny
from tests.builders import training_config

pytestmark = pytest.mark.filterwarnings("ignore")
EXACT: tuple[EngineName, ...] = ("openvino-fp32", "onnx-fp32", "torch-fp32")
Publish = Callable[[str], EngineFactory]


@pytest.fixture(scope="module")
def published(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Trains a tiny model of an architecture and returns the factory of its engines."""
    known: dict[str, EngineFactory] = {}

    def make(kind: str) -> EngineFactory:
        if kind not in known:
            folder = tmp_path_factory.mktemp(kind)
            base = tiny.save(folder / "base", kind, transformers.AutoModel)
            config = training_config(
                reviews,
                base,
                model=ModelSpec(base=base),
                epochs=4.0,
                optimizer=OptimizerSpec(lr=1e-2),
            )
            reference = train(config, lambda _: None, folder / "checkpoints")
            model = Path(reference.path) / "model"
            known[kind] = EngineFactory(model, folder / "exports", Tokenizer(model, 32), "cpu", 1)
        return known[kind]

    return make


@pytest.mark.parametrize("kind", ["xlnet", "t5", "bart", "gpt2", "roberta"])
def test_engines_that_may_serve_score_as_training_did(
    kind: str, published: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "CHECK_THRESHOLD", 0.0)  # the slow ones too
    factory = published(kind)
    sample = read_eval_sample(factory.model)
    assert sample.scores is not None
    choice = selection.choose(factory, EXACT, sample, is_timed=False)
    allowed = [trial.engine for trial in choice.trials if not trial.refusal]
    assert "torch-fp32" in allowed
    for name in allowed:
        engine = factory.make(name, sample)
        for batch in (1, 7, 50):
            assert acceptance.scores(engine, sample.rows, batch) == pytest.approx(
                sample.scores, abs=1e-3
            )
    texts = [tuple(row.texts) for row in eval_sample.read(factory.model)]
    assert [list(row.ids) for row in factory.tokenizer.rows(texts)] == [r.ids for r in sample.rows]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("kind", "engine"), [("t5", TorchEngine), ("bart", TorchEngine), ("bert", CapturedEngine)]
)
def test_models_that_cannot_be_captured_are_run_as_they_are(
    kind: str, engine: type, published: Publish
) -> None:
    factory = replace(published(kind), device="cuda")
    sample = read_eval_sample(factory.model)
    assert type(factory.make("torch-fp32", sample)) is engine
    choice = selection.choose(factory, ("torch-fp32",), sample, is_timed=False)
    assert (choice.engine, choice.is_one_by_one) == ("torch-fp32", False)


def test_a_failed_export_leaves_nothing_that_a_later_one_takes_over(
    published: Publish, tmp_path: Path
) -> None:
    factory = replace(published("roberta"), exports=tmp_path / "exports")

    def half(graph: Path) -> None:
        graph.write_text("half of a graph", encoding="utf-8")
        raise RuntimeError("the converter broke")

    def whole(graph: Path) -> None:
        graph.with_suffix(".bin").write_text("weights", encoding="utf-8")
        graph.write_text("graph", encoding="utf-8")

    with pytest.raises(RuntimeError, match="broke"):
        factory._exported("model.onnx", half)
    assert factory._exported("rows.xml", whole) == tmp_path / "exports/rows.xml"
    assert sorted(path.name for path in factory.exports.iterdir()) == ["rows.bin", "rows.xml"]


def exchanged(factory: EngineFactory, folder: Path) -> EngineFactory:
    """The same model with the rows of its output layer in another order."""
    model = shutil.copytree(factory.model, folder / "model")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    weight = loaded.classifier.out_proj.weight.data
    weight.copy_(weight.flip(0))
    loaded.save_pretrained(model)
    return EngineFactory(model, folder / "exports", factory.tokenizer, "cpu", 1)


@pytest.mark.parametrize("name", EXACT)
def test_a_version_that_no_engine_scores_as_training_did_is_not_served(
    name: EngineName, published: Publish, tmp_path: Path
) -> None:
    """A planted fault exchanges the classes. The check also runs if one engine is configured."""
    factory = exchanged(published("roberta"), tmp_path)
    with pytest.raises(DeployError, match="no engine reproduces training's scores"):
        selection.choose(factory, (name,), read_eval_sample(factory.model), is_timed=False)
