"""On GPUs: steps are captured, and learn what eager steps and one GPU learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.corpus import load_corpus
from jobs.training.session import build_session
from jobs.training.world import World
from serve.batching.rows import Tokenizer
from serve.engines import engine_factory
from serve.engines.captured_engine import CapturedEngine
from tests.builders import MINILM
from tests.jobs.training import workers
from tests.tasks.embedding import PAIRS, SCORED, TRIPLETS, config_of, data_of, publish, write_rows

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
GPUS = torch.cuda.device_count()
needs_gpu = pytest.mark.skipif(not GPUS, reason="needs a CUDA device")
ALONE: dict[str, float] = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest difference of a loss between captured and eager steps."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


def config(rows: Path, fields: dict[str, Any], **others: Any) -> Any:
    values = {"device": "cuda", "epochs": 10.0, "optimizer": OptimizerSpec(lr=2e-5)}
    return config_of(rows, MINILM, data_of(rows, **fields), **{**values, **others})


@needs_gpu
@pytest.mark.parametrize("precision", ALONE)
@pytest.mark.parametrize(
    "fields", [PAIRS, {**TRIPLETS, "dimensions": (128, 64)}, SCORED], ids=["pairs", "triplets", "s"]
)
def test_captured_steps_are_the_eager_ones(
    fields: dict[str, Any], precision: str, rows: Path
) -> None:
    found = {}
    for capture in (True, False):
        own = config(rows, fields, precision=precision, capture=capture)
        built = build_session(own, load_corpus(own), World(0, 1, torch.device("cuda", 0)))
        assert (built.engine.eager_reason == "") == capture
        losses: list[float] = []
        for step in range(built.batch_plan.total_steps):
            built.engine.seek(step)
            built.engine.launch(step, step + 1)
            losses += [result.loss for result in built.engine.collect()]
        found[capture] = losses
    assert found[True] == pytest.approx(found[False], abs=ALONE[precision])


@pytest.mark.workers
@pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("precision", ALONE)
def test_two_gpus_learn_what_one_learns(precision: str, rows: Path, tmp_path: Path) -> None:
    """The negatives of both, through NCCL inside of captured steps."""
    found, modes = {}, {}
    for count in (1, 2):
        own = config(rows, TRIPLETS, precision=precision, micro_batch_size=16 // count)
        events = workers.run(own, count, tmp_path)
        judged = [event["metrics"] for event in events if event["event"] == "Evaluated"]
        modes[count] = next(event["mode"] for event in events if event["event"] == "Started")
        found[count] = [*workers.losses(events), judged[-1]["mrr"]]
    assert set(modes.values()) == {"captured"}
    assert found[2] == pytest.approx(found[1], abs=ALONE[precision] * 10)


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_batches_give_the_vectors_of_training(
    precision: Any, rows: Path, tiny_model: str
) -> None:
    version = publish(rows, tiny_model, [], **TRIPLETS)
    folder = Path(version.path)
    sample = engine_factory.read_eval_sample(folder, "vector")
    assert sample.scores is not None
    engine = CapturedEngine(folder, Tokenizer(folder, version.max_length), precision)
    found = np.concatenate([engine.run(sample.rows[n : n + 8]) for n in range(0, 37, 8)])
    cosines = (found * sample.scores).sum(axis=1)
    assert np.abs(cosines - 1).max() < (1e-5 if precision == "fp32" else 0.01)
