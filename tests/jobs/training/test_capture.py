"""On a GPU: captured steps are the eager ones, and every part of the fast path adds nothing."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from jobs.spec.model import ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec, OptimizerSpec
from jobs.training.corpus import load_corpus
from jobs.training.engine import kernels
from jobs.training.engine.capture import LARGEST_CONSTANT, HostConstants, compiled
from jobs.training.events import Event, Started, Stepped
from jobs.training.loop import train
from jobs.training.session import Session, build_session
from jobs.training.world import World
from tests import tiny
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
    for step in range(built.batch_plan.total_steps):
        engine.seek(step)
        engine.launch(step, step + 1)
        found += engine.collect()
    return [result.loss for result in found]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp32"])
@pytest.mark.parametrize("micro_batch_size", [32, 16, 4])
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
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["adamw", "adafactor", "sgd", "muon"])
def test_every_optimizer_is_captured(name: str, precision: str, reviews: Path) -> None:
    """Also with learning rates that differ between weights."""
    optimizer = OptimizerSpec(name=name, lr=2e-5, layerwise_lr_decay=0.8, head_lr=1e-4)
    fields = {"precision": precision, "optimizer": optimizer, "epochs": 8.0}
    captured = session(reviews, **fields)
    assert captured.engine.eager_reason == ""
    eager = session(reviews, **fields, capture=False)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert losses(captured) == pytest.approx(losses(eager), abs=tolerance)


@pytest.mark.gpu
@needs_gpu
def test_flat_weights_have_the_rates_of_pytorch_s_groups(
    reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = OptimizerSpec(lr=2e-5, layerwise_lr_decay=0.8, head_lr=1e-4)
    fields = {"precision": "fp32", "optimizer": optimizer, "epochs": 8.0}
    flat = losses(session(reviews, **fields))
    monkeypatch.setattr(kernels, "available", False)
    assert losses(session(reviews, **fields)) == pytest.approx(flat, abs=1e-4)


@pytest.mark.gpu
@needs_gpu
def test_flat_weights_learn_what_pytorch_s_optimizer_learns(
    reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = losses(session(reviews, precision="fp32"))
    monkeypatch.setattr(kernels, "available", False)
    assert losses(session(reviews, precision="fp32")) == pytest.approx(flat, abs=1e-4)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("capture", [True, False])
def test_steps_may_go_on_beyond_the_run_s_last(reviews: Path, *, capture: bool) -> None:
    """As a probe's do, when the run is short."""
    built = session(reviews, epochs=1.0, capture=capture)
    for _ in range(3):
        assert all(math.isfinite(loss) for loss in losses(built))


@pytest.mark.gpu
@needs_gpu
def test_a_captured_run_goes_on_where_it_was_stopped(reviews: Path, tmp_path: Path) -> None:
    """With dropout, so that random states count; attention's gradients add up in any order."""
    model, every = ModelSpec(base=MINILM), Cadence(1, "epoch")
    fields: dict[str, Any] = {"device": "cuda", "precision": "bf16", "model": model}
    config = training_config(
        reviews, MINILM, **fields, epochs=8.0, checkpoint=CheckpointSpec(every=every, keep=8)
    )

    def train_from(first: int) -> list[float]:
        events: list[Event] = []
        train(config, events.append, tmp_path)
        assert next(e for e in events if isinstance(e, Started)).first_step == first
        return [event.loss for event in events if isinstance(event, Stepped)]

    whole = train_from(0)
    for path in sorted(tmp_path.glob("step-*"))[4:]:
        shutil.rmtree(path)
    assert train_from(20) == pytest.approx(whole[20:], abs=2e-2)


def test_the_pieces_of_a_step_are_the_step(reviews: Path, tiny_model: str) -> None:
    config = training_config(reviews, tiny_model, micro_batch_size=4, epochs=1.0)
    steps = [
        build_session(config, load_corpus(config), World(0, 1, torch.device("cpu"))).engine.step
        for _ in range(2)
    ]
    whole, parts = steps
    assert whole.batch_plan.passes == 8
    for step in steps:
        step.batch_plan.seek(0)
    for number in range(3):
        width = whole.batch_plan.width(number)
        whole.run(width)
        pieces = parts.pieces(width)
        assert [piece.times for piece in pieces] == [1, 6, 1]
        for piece in pieces:
            for _ in range(piece.times):
                piece.run()
    assert torch.equal(whole.losses[:3], parts.losses[:3])
    for one, other in zip(whole.update.weights, parts.update.weights, strict=True):
        assert torch.equal(one.target, other.target)


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
    loader, plan = built.engine.step.loader, built.batch_plan
    plan.seek(0)
    on_device = loader.batches(12)
    loader.on_device = False
    ahead = [loader.batches(12) for _ in range(2)]  # the second comes from the thread
    for batches in ahead:
        for (found, weights), (expected, wanted) in zip(batches, on_device, strict=True):
            assert torch.equal(weights, wanted)
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_small_tensors_of_the_host_are_written_where_they_would_be_copied() -> None:
    rows, far = torch.arange(6.0).reshape(2, 3), torch.zeros(LARGEST_CONSTANT + 1)
    with HostConstants(torch.device("cpu")):  # a copy from the CPU to itself
        assert torch.tensor(3).to(torch.float16).tolist() == 3.0
        assert torch.tensor(2).type_as(rows).dtype == rows.dtype
        copied = torch.zeros(2, 3).copy_(rows)
        assert torch.equal(copied, rows)
        assert torch.equal(torch.zeros(2, 3).copy_(torch.tensor(7.0)), torch.full((2, 3), 7.0))
        assert torch.equal(far.to(torch.float64), far.double())
    with HostConstants(torch.device("meta")):
        assert torch.tensor([1.0, 2.0]).to("meta", torch.float16).shape == (2,)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", ["deberta-v2", "mpnet", "roberta", "distilbert", "modernbert"])
def test_encoders_are_captured_and_learn_as_eager_ones(
    kind: str, reviews: Path, tmp_path: Path
) -> None:
    base = tiny.save(tmp_path, kind, transformers.AutoModelForSequenceClassification)
    fields: dict[str, Any] = {"model": ModelSpec(base=base, dropout=0.0), "precision": "fp32"}
    captured = session(reviews, **fields)
    assert captured.engine.eager_reason == ""
    eager = session(reviews, **fields, capture=False)
    assert losses(captured) == pytest.approx(losses(eager), abs=1e-4)


def test_compiled_layers_stay_compiled_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        def run(*inputs: Any) -> Any:
            runs.append(1)
            return graph(*inputs)

        return run

    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda work, **_: whole(work, backend=backend))
    fast, value = compiled(lambda x: x.sin() + 2 * x.cos()), torch.ones(3)
    expected = fast(value)
    with HostConstants(torch.device("cuda", 0)):
        assert fast(value).equal(expected)
    assert len(runs) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch's own
def test_compiled_layers_keep_less_where_they_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.compile
    backend = "aot_eager_decomp_partition"  # the real partitioner, without a C++ compiler
    options = {"backend": backend, "dynamic": False}
    monkeypatch.setattr(torch, "compile", lambda work, **_: whole(work, **options))
    up, down = (torch.nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return down(torch.nn.functional.silu(up(x)) * x)  # type: ignore[no-any-return]

    def step(*, recomputes: bool) -> tuple[int, torch.Tensor]:
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.data_ptr()] = tensor.numel()
            return tensor

        value = torch.linspace(-1, 1, 8 * 64).view(8, 64).requires_grad_()
        torch._dynamo.reset()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(forward, recomputes=recomputes)(value).sum().backward()
        assert value.grad is not None
        return sum(kept.values()), value.grad

    (all_kept, expected), (few_kept, found) = step(recomputes=False), step(recomputes=True)
    assert few_kept <= all_kept - 8 * 64
    assert found.equal(expected)
