"""On a GPU: captured steps are the eager ones, and every part of the fast path adds nothing."""

from pathlib import Path

import pytest
import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.data.corpus import load_corpus
from jobs.training.engine import kernels
from jobs.training.session import Session, build_session
from jobs.training.world import World
from tests.builders import MINILM, training_config

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def session(reviews: Path, **fields: object) -> Session:
    """Two hundred steps over small batches on one GPU, dropout off."""
    values = {
        "epochs": 40.0,
        "precision": "bf16",
        "device": "cuda",
        "optimizer": OptimizerSpec(lr=2e-5),
    }
    config = training_config(reviews, MINILM, **{**values, **fields})
    return build_session(config, load_corpus(config), World(0, 1, torch.device("cuda", 0)))


def losses(built: Session) -> list[float]:
    """Of every step."""
    found, engine = [], built.engine
    for step in range(built.schedule.total_steps):
        engine.seek(step)
        engine.launch(step, step + 1)
        found += engine.collect()
    return [result.loss for result in found]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp32"])
@pytest.mark.parametrize("micro_batch_size", [32, 8])
def test_captured_steps_are_the_eager_ones(
    precision: str, micro_batch_size: int, reviews: Path
) -> None:
    fields = {"precision": precision, "micro_batch_size": micro_batch_size}
    captured = session(reviews, **fields)
    assert captured.engine.eager_reason == ""
    eager = session(reviews, **fields, capture=False)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert losses(captured) == pytest.approx(losses(eager), abs=tolerance)


@pytest.mark.gpu
@needs_gpu
def test_flat_weights_learn_what_pytorch_s_optimizer_learns(
    reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = losses(session(reviews, precision="fp32"))
    monkeypatch.setattr(kernels, "available", False)
    assert losses(session(reviews, precision="fp32")) == pytest.approx(flat, abs=1e-4)


def test_a_run_without_a_gpu_says_why_it_is_eager(reviews: Path, tiny_model: str) -> None:
    config = training_config(reviews, tiny_model)
    built = build_session(config, load_corpus(config), World(0, 1, torch.device("cpu")))
    assert built.engine.eager_reason == "there is no GPU"


def test_rows_that_stay_in_host_memory_give_the_same_batches(
    reviews: Path, tiny_model: str
) -> None:
    """The prefetching path, with the host standing in for a device that is too small."""
    config = training_config(reviews, tiny_model, micro_batch_size=8)
    built = build_session(config, load_corpus(config), World(0, 1, torch.device("cpu")))
    feed, schedule = built.engine.step.feed, built.schedule
    schedule.seek(0)
    on_device = feed.batches(12)
    feed.on_device = False
    ahead = [feed.batches(12) for _ in range(2)]  # the second comes from the thread
    for batches in ahead:
        for (found, weights), (expected, wanted) in zip(batches, on_device, strict=True):
            assert torch.equal(weights, wanted)
            assert all(torch.equal(found[name], expected[name]) for name in expected)
