"""Engines give the logits of each token, whatever pads or packs the rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from serve.batching.policy import Limits
from serve.batching.rows import Row, Tokenizer
from serve.engines.engine import Head, OneByOne
from serve.engines.engine_factory import EngineFactory, EvalSample
from serve.engines.openvino_engine import OpenVinoEngine
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore")
HEAD = Head("AutoModelForTokenClassification", is_per_token=True)
LENGTHS = (5, 17, 2, 9, 30, 3, 3)
SAMPLE = EvalSample((), ())


def rows_of(draw: Any) -> list[Row]:
    """Rows of random tokens between the special ones."""
    return [
        Row((1, *draw.integers(4, tiny.VOCABULARY, length).tolist(), 2), ()) for length in LENGTHS
    ]


def made(folder: Path, model_type: str, *, pads_left: bool = False) -> EngineFactory:
    """A factory for a tiny model with five labels."""
    auto = transformers.AutoModelForTokenClassification
    tiny.save(folder / "model", model_type, auto, num_labels=5)
    if pads_left:
        tiny.tokenizer(padding_side="left").save_pretrained(folder / "model")
    tokenizer = Tokenizer(folder / "model", 64)
    assert tokenizer.pads_left == pads_left
    return EngineFactory(folder / "model", folder / "exports", tokenizer, "cpu", 1, HEAD)


@pytest.mark.parametrize(
    ("model_type", "pads_left"),
    [("bert", False), ("distilbert", False), ("roberta", False), ("qwen2", True)],
)
def test_logits_are_those_of_each_row_alone(
    model_type: str, *, pads_left: bool, tmp_path: Path
) -> None:
    """Flat, in the order of rows; Qwen2 pads on the left here."""
    rows = rows_of(np.random.default_rng(3))
    factory = made(tmp_path, model_type, pads_left=pads_left)
    reference = factory.make("torch-fp32", SAMPLE)
    expected = np.concatenate([reference.run([row]) for row in rows])
    assert expected.shape == (sum(map(len, rows)), 5)
    engines = [reference, OneByOne(reference)]
    if not pads_left:
        engines += [factory.make(name, SAMPLE) for name in ("onnx-fp32", "openvino-fp32")]
        assert engines[-1].is_packed == (model_type == "bert")
    for engine in engines:
        assert engine.run(rows) == pytest.approx(expected, abs=1e-4)
        assert engine.launch(rows[:1])() == pytest.approx(expected[: len(rows[0])], abs=1e-4)


def test_graphs_of_fixed_shapes_give_the_same(tmp_path: Path) -> None:
    rows = rows_of(np.random.default_rng(4))
    factory = made(tmp_path, "bert")
    engine = factory.make("openvino-fp32", SAMPLE)
    assert isinstance(engine, OpenVinoEngine)
    expected = engine.run(rows), engine.run(rows[:1])
    engine.prepare([len(row) for row in rows], Limits(batch_tokens=256), 64)
    assert engine.packing.static_shapes
    assert engine.run(rows) == pytest.approx(expected[0], abs=1e-4)
    shape = next(s for s in engine.packing.static_shapes if s[0] == 1 and s[1] >= len(rows[0]))
    assert engine.packing.has_graph(shape, 1)
    assert engine.run(rows[:1]) == pytest.approx(expected[1], abs=1e-4)
