"""On a GPU: steps of every problem of text-classification are captured, and are the eager ones."""

from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.corpus import load_corpus
from jobs.training.evaluate import evaluate
from jobs.training.session import Session, build_session
from jobs.training.world import World
from tests.builders import MINILM
from tests.tasks import text_problems
from tests.tasks.text_problems import config_of, data_of, label_rows, number_rows

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "weighted": (
        {"label": "funny", "class_weights": "balanced", "label_smoothing": 0.1},
        ("roc_auc", "ece"),
    ),
    "several-labels": (
        {"problem": "multi-label", "label": "labels", "class_weights": "balanced"},
        ("average_precision", "f1_micro"),
    ),
    "numbers": (
        {"problem": "regression", "label": ("rating", "words"), "loss": "huber"},
        ("spearman", "rmse"),
    ),
}


def session(name: str, folder: Path, *, capture: bool) -> Session:
    """Fifty steps of a problem on one GPU, dropout off."""
    fields, metrics = CASES[name]
    rows = text_problems.write(folder, number_rows if name == "numbers" else label_rows)
    config = config_of(
        data_of(rows, **fields),
        MINILM,
        metrics=metrics,
        epochs=5.0,
        precision="bf16",
        device="cuda",
        capture=capture,
        optimizer=OptimizerSpec(lr=2e-5),
    )
    return build_session(config, load_corpus(config), World(0, 1, torch.device("cuda", 0)))


def losses(built: Session) -> list[float]:
    """Of every step."""
    found, engine = [], built.engine
    for step in range(built.batch_plan.total_steps):
        engine.seek(step)
        engine.launch(step, step + 1)
        found += engine.collect()
    return [result.loss for result in found]


@needs_gpu
@pytest.mark.parametrize("name", list(CASES))
def test_captured_steps_are_the_eager_ones(name: str, tmp_path: Path) -> None:
    captured, eager = (session(name, tmp_path, capture=capture) for capture in (True, False))
    assert captured.engine.eager_reason == ""
    assert losses(captured) == pytest.approx(losses(eager), abs=2e-2)
    found = [evaluate(each, "bf16") for each in (captured, eager)]
    assert found[0] == pytest.approx(found[1], rel=5e-2, abs=5e-2)
