"""Engines give the logits of hidden tokens, and are checked by the losses of evaluation rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from jobs.spec.serve import EngineName
from jobs.training.eval_sample import SampleRow, write
from serve.batching.rows import Logits, Row, Tokenizer
from serve.engines import engine_factory, selection
from serve.engines.acceptance import AcceptanceCheck
from serve.engines.engine import Head, OneByOne
from serve.engines.engine_factory import EngineFactory, EvalSample
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore")
HEAD = Head("AutoModelForMaskedLM", is_per_hidden=True)
LENGTHS = (5, 17, 2, 9, 30, 3, 3)
MASK = 3
SAMPLE = EvalSample((), ())


def rows_of(draw: Any) -> list[Row]:
    """Rows of random tokens between the special ones, with one to three masks."""
    found = []
    for number, length in enumerate(LENGTHS):
        ids = [1, *draw.integers(4, tiny.VOCABULARY, length).tolist(), 2]
        hidden = sorted({1, 1 + number % length, length})
        originals = [ids[place] for place in hidden]
        for place in hidden:
            ids[place] = MASK
        found.append(Row(ids, (), hidden=hidden, originals=originals))
    return found


def logits_of(model: Any, row: Row) -> Logits:
    """The logits of a row's hidden tokens, of the whole model."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row.ids])).logits[0]
    found: Logits = logits[row.hidden].numpy()
    return found


def made(folder: Path, model_type: str, *, pads_left: bool = False) -> tuple[EngineFactory, Any]:
    """A factory for a tiny model, and the model."""
    auto = transformers.AutoModelForMaskedLM
    tiny.save(folder / "model", model_type, auto)
    side = "left" if pads_left else "right"
    tiny.tokenizer(mask_token="<mask>", padding_side=side).save_pretrained(folder / "model")
    tokenizer = Tokenizer(folder / "model", 64)
    factory = EngineFactory(folder / "model", folder / "exports", tokenizer, "cpu", 1, HEAD)
    return factory, auto.from_pretrained(folder / "model").eval()


@pytest.mark.parametrize(
    ("model_type", "pads_left"),
    [
        ("bert", False),
        ("distilbert", False),
        ("roberta", False),
        ("electra", False),
        ("albert", False),
        ("modernbert", False),
        ("modernbert", True),
    ],
)
def test_logits_are_those_of_hidden_tokens_alone(
    model_type: str, *, pads_left: bool, tmp_path: Path
) -> None:
    """Flat, in the order of rows; ModernBERT's positions are relative, so that it may pad left."""
    rows = rows_of(np.random.default_rng(3))
    factory, model = made(tmp_path, model_type, pads_left=pads_left)
    expected = [logits_of(model, row) for row in rows]
    reference = factory.make("torch-fp32", SAMPLE)
    engines = [reference, OneByOne(reference)]
    engines += [factory.make(name, SAMPLE) for name in ("onnx-fp32", "openvino-fp32")]
    for engine in engines:
        assert engine.run(rows) == pytest.approx(np.concatenate(expected), abs=1e-4)
        assert engine.launch(rows[:1])() == pytest.approx(expected[0], abs=1e-4)


def sample_of(folder: Path, model: Any, *, shift: float = 0.0) -> EvalSample:
    """Writes and reads an evaluation sample, with the model's mean losses plus a number."""
    kept = []
    for row in rows_of(np.random.default_rng(5)):
        logits = torch.from_numpy(logits_of(model, row))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(row.originals)).item()
        trained = [int(place in row.hidden) for place in range(len(row))]
        originals = list(row.ids)
        for place, token in zip(row.hidden, row.originals, strict=True):
            originals[place] = token
        kept.append(
            SampleRow(
                row.ids, [0] * len(row), MASK, (), [loss + shift], trained, originals=originals
            )
        )
    write(kept, folder)
    return engine_factory.read_eval_sample(folder, "token-loss")


def test_engines_are_checked_by_the_losses_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "CHECK_THRESHOLD", 0.0)  # the slow ones too
    factory, model = made(tmp_path, "bert")
    sample = sample_of(factory.model, model)
    assert sample.rows == tuple(
        Row(row.ids, [0] * len(row), hidden=row.hidden, originals=row.originals)
        for row in rows_of(np.random.default_rng(5))
    )
    names: tuple[EngineName, ...] = ("openvino-fp32", "onnx-fp32")
    choice = selection.choose(factory, names, sample, is_timed=False)
    assert [result.refusal for result in choice.trials] == ["", ""]
    assert choice.engine in names
    astray = AcceptanceCheck(sample, sample_of(factory.model, model, shift=0.2).scores)
    found = astray.run(factory.make("onnx-fp32", sample))
    assert found.refusal == "it gives 100.0% of the rows other scores than training"


def test_an_engine_in_int8_scores_or_is_refused(tmp_path: Path) -> None:
    """Random weights are hard to round; the check decides."""
    factory, model = made(tmp_path, "bert")
    sample = sample_of(factory.model, model)
    choice = selection.choose(factory, ("openvino-int8",), sample, is_timed=False)
    result = choice.trials[0]
    assert "cannot be created" not in result.refusal
    assert choice.engine == ("torch-fp32" if result.refusal else "openvino-int8")
