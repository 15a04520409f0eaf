"""On a GPU: steps and batches of a classifier of tokens are captured, and are the eager ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jobs.spec import task_registry
from jobs.spec.train import OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.training.corpus import load_corpus
from jobs.training.events import Started
from jobs.training.loop import train
from jobs.training.session import build_session
from jobs.training.world import World
from orchestrator.records import registry
from serve.batching.rows import Tokenizer
from serve.engines import acceptance, engine_factory
from serve.engines.captured_engine import CapturedEngine
from serve.engines.engine import Head
from serve.engines.engine_factory import EngineFactory
from tests.builders import job
from tests.tasks import token_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]
TASK = "token-classification"


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("micro_batch_size", [24, 4])
def test_captured_steps_are_the_eager_ones(
    precision: str, micro_batch_size: int, tiny_model: str, tmp_path: Path
) -> None:
    token_rows.write(tmp_path)

    def losses(**fields: Any) -> list[float]:
        config = token_rows.config(
            tmp_path,
            tiny_model,
            device="cuda",
            precision=precision,
            micro_batch_size=micro_batch_size,
            epochs=1.0,
            optimizer=OptimizerSpec(lr=1e-3),
            **fields,
        )
        built = build_session(config, load_corpus(config), World(0, 1, torch.device("cuda", 0)))
        assert fields or built.engine.eager_reason == ""
        found = []
        for step in range(built.batch_plan.total_steps):
            built.engine.seek(step)
            built.engine.launch(step, step + 1)
            found += built.engine.collect()
        return [result.loss for result in found]

    tolerance = 1e-4 if precision == "fp32" else 5e-2
    captured = losses()
    assert captured == pytest.approx(losses(capture=False), abs=tolerance)
    assert captured[-1] < captured[0]


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("fp16", 0.01), ("bf16", 0.05)])
def test_captured_batches_give_the_scores_of_fp32(
    precision: Any, bound: float, tiny_model: str, tmp_path: Path
) -> None:
    token_rows.write(tmp_path)
    config, events = token_rows.config(tmp_path, tiny_model, device="cuda"), list[Any]()
    reference = train(config, events.append, tmp_path / "checkpoints", proves=True)
    labels = next(event.labels for event in events if isinstance(event, Started))
    spec = job().model_copy(update={"model": config.model, "data": config.data})
    storage = open_storage(tmp_path / "storage")
    version = registry.publish(spec, reference, labels, run_id="test", storage=storage)
    folder, task = Path(version.path), task_registry.find(TASK)
    tokenizer, head = Tokenizer(folder, version.max_length), Head.of(task)
    sample = engine_factory.read_eval_sample(folder, task.activation)
    factory = EngineFactory(folder, tmp_path / "exports", tokenizer, "cpu", 1, head)
    expected = acceptance.scores(factory.make("torch-fp32", sample), sample.rows, 16)
    engine = CapturedEngine(folder, tokenizer, precision, head)
    for batch in (1, 16, 49):
        found = acceptance.scores(engine, sample.rows, batch)
        assert np.abs(found - expected).max() <= bound
    launched = [engine.launch(sample.rows[first : first + 8]) for first in (0, 8, 16)]
    for number, pending in enumerate(launched):
        alone = engine.run(sample.rows[8 * number : 8 * number + 8])
        assert pending() == pytest.approx(alone, abs=1e-3)
