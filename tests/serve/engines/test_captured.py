"""On a GPU every batch within the limits has a shape that was captured at the start."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from serve.batching.policy import Limits, form_batches
from serve.batching.rows import Padding, Row, Tokenizer
from serve.engines import acceptance, engine_factory
from serve.engines.captured_engine import WIDTHS, CapturedEngine, shape_of, shapes
from serve.engines.engine import OneByOne
from serve.engines.engine_factory import EngineFactory, EvalSample
from serve.version import ModelVersion

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("longest", [32, 100, 512])
def test_whatever_a_batch_is_its_shape_is_known(longest: int) -> None:
    draw, limits = random.Random(longest), Limits(batch_tokens=2048, batch_rows=64)
    known = set(shapes(limits.batch_rows, limits.batch_tokens, longest))
    for _ in range(2000):
        lengths = [draw.randint(1, longest) for _ in range(draw.randint(1, 90))]
        for batch in form_batches(lengths, limits):
            assert shape_of(len(batch), max(lengths[n] for n in batch)) in known
    assert len(known) < 200


def test_rows_that_are_run_one_by_one_are_captured_at_every_width() -> None:
    engine = CapturedEngine.__new__(CapturedEngine)  # without its model, which needs a GPU
    engine.name = "torch-fp32"
    limits = Limits(batch_tokens=2048, batch_rows=64)
    assert (64, 32) in engine.prepare([], limits, 512)
    alone = OneByOne(engine).prepare([], limits, 512)
    assert sorted(alone) == [(1, width) for width in WIDTHS]


def test_a_shape_holds_its_batch_and_little_more() -> None:
    assert shape_of(1, 1) == (1, 8)
    assert shape_of(33, 17) == (48, 24)
    assert shape_of(64, 512) == (64, 512)
    assert shape_of(600, 700) == (600, 700)


def test_filler_rows_attend_to_something() -> None:
    target = np.full((3, 4, 5), 9, dtype=np.int64)
    Padding(7).fill([Row([1, 2, 3], [0, 1, 1]), Row([4], [0])], target)
    assert target[0].tolist() == [[1, 2, 3, 7, 7], [4, 7, 7, 7, 7], [7] * 5, [7] * 5]
    assert target[1].tolist() == [[1, 1, 1, 0, 0], *[[1, 0, 0, 0, 0]] * 3]
    assert target[2].tolist() == [[0, 1, 1, 0, 0], *[[0] * 5] * 3]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("fp16", 0.01), ("bf16", 0.03)])
def test_captured_batches_give_the_scores_of_fp32(
    precision: str, bound: float, version: ModelVersion, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(Path(version.path), version.max_length)
    sample = engine_factory.read_eval_sample(Path(version.path))
    factory = EngineFactory(Path(version.path), tmp_path, tokenizer, "cpu", 1)
    expected = acceptance.scores(factory.make("torch-fp32", EvalSample((), ())), sample.rows, 16)
    engine = CapturedEngine(Path(version.path), tokenizer, precision)  # type: ignore[arg-type]
    for batch in (1, 16, 50):
        assert acceptance.scores(engine, sample.rows, batch) == pytest.approx(expected, abs=bound)
    launched = [engine.launch(sample.rows[n : n + 8]) for n in (0, 8, 16)]
    for number, landing in enumerate(launched):
        alone = engine.run(sample.rows[8 * number : 8 * number + 8])
        assert landing() == pytest.approx(alone)
