"""On a GPU: captured steps of encoder-decoder models are the eager ones."""

from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.corpus import load_corpus
from jobs.training.session import Session, build_session
from jobs.training.world import World
from tests import tiny
from tests.tasks import swaps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]


def session(folder: Path, base: str, **fields: Any) -> Session:
    """Sixteen steps on one GPU, dropout off."""
    values: dict[str, Any] = {"epochs": 2.0, "device": "cuda", "optimizer": OptimizerSpec(lr=1e-4)}
    config = swaps.config_of(folder, base, **{**values, **fields})
    return build_session(config, load_corpus(config), World(0, 1, torch.device("cuda", 0)))


def losses(built: Session) -> list[float]:
    """Of every step."""
    found, engine = [], built.engine
    for step in range(built.batch_plan.total_steps):
        engine.seek(step)
        engine.launch(step, step + 1)
        found += engine.collect()
    return [result.loss for result in found]


@pytest.mark.parametrize("micro_batch_size", [16, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["t5", "bart", "mbart", "marian", "m2m_100"])
def test_captured_steps_are_the_eager_ones(
    kind: str, precision: str, micro_batch_size: int, tmp_path: Path
) -> None:
    swaps.write(tmp_path)
    extra = {"decoder_vocab_size": tiny.VOCABULARY} if kind == "marian" else {}
    base = swaps.base_of(tmp_path, kind, **extra)
    fields: dict[str, Any] = {"precision": precision, "micro_batch_size": micro_batch_size}
    captured = session(tmp_path, base, **fields)
    assert captured.engine.eager_reason == ""
    eager = session(tmp_path, base, **fields, capture=False)
    tolerance = 1e-4 if precision == "fp32" else 5e-2
    assert losses(captured) == pytest.approx(losses(eager), abs=tolerance)
