"""Each optimizer takes the steps of the library that everybody uses, each weight at its rate."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from jobs.errors import CheckpointError, ModelError
from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.training.engine.update import Update
from jobs.training.events import Event, Stepped
from jobs.training.loop import train
from jobs.training.model import parts
from jobs.training.model.weight import Weight
from jobs.training.world import World
from tests import tiny
from tests.builders import training_config
from tests.jobs.training import flat_on_cpu, workers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STEPS = 12
SHAPES = ((6, 10), (10, 6), (8,), (4, 4))
RATES = (1.0, 0.5, 0.25, 1.0)
IN_LAYER = (True, True, True, False)
FAR = 1e9
"""A norm that no gradient is clipped to."""


def spec(**fields: Any) -> OptimizerSpec:
    """An optimizer with weight decay and without clipping."""
    return OptimizerSpec(**{"lr": 0.02, "weight_decay": 0.1, "max_grad_norm": FAR, **fields})


def parameters() -> list[torch.nn.Parameter]:
    """A few weights, always the same."""
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def weights_of(values: Sequence[torch.nn.Parameter]) -> list[Weight]:
    """The weights as an update holds them, each with a rate."""
    return [
        Weight(str(n), value, value, rate=RATES[n], is_in_layer=IN_LAYER[n])
        for n, value in enumerate(values)
    ]


def groups(
    values: Sequence[torch.nn.Parameter], chosen: Callable[[int], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """A group for each weight, with its rate and its weight decay."""
    return [
        {"params": [value], "lr": 0.02 * RATES[n], "weight_decay": 0.1 if value.dim() > 1 else 0.0}
        for n, value in enumerate(values)
        if chosen(n)
    ]


def adamw(values: Sequence[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    """PyTorch's."""
    return [torch.optim.AdamW(groups(values))]


def sgd(**settings: Any) -> Callable[..., list[torch.optim.Optimizer]]:
    """PyTorch's."""
    return lambda values: [torch.optim.SGD(groups(values), **settings)]


def adafactor(values: Sequence[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    """That of transformers, as its Trainer makes it."""
    settings = {"scale_parameter": False, "relative_step": False}
    return [transformers.optimization.Adafactor(groups(values), **settings)]


def muon(values: Sequence[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    """PyTorch's for matrices in layers, and its AdamW for the others."""

    def is_matrix(n: int) -> bool:
        return IN_LAYER[n] and len(SHAPES[n]) == 2

    matrices = torch.optim.Muon(groups(values, is_matrix), adjust_lr_fn="match_rms_adamw")
    return [matrices, torch.optim.AdamW(groups(values, lambda n: not is_matrix(n)))]


@pytest.mark.parametrize(
    ("fields", "reference"),
    [
        ({"name": "adamw"}, adamw),
        ({"name": "sgd"}, sgd(momentum=0.9)),
        ({"name": "sgd", "momentum": 0.5, "nesterov": True}, sgd(momentum=0.5, nesterov=True)),
        ({"name": "sgd", "momentum": 0.0}, sgd()),
        ({"name": "adafactor"}, adafactor),
        ({"name": "muon"}, muon),
    ],
    ids=["adamw", "sgd", "nesterov", "plain sgd", "adafactor", "muon"],
)
def test_twelve_steps_are_those_of_the_library(
    fields: dict[str, Any], reference: Callable[..., list[torch.optim.Optimizer]]
) -> None:
    ours, theirs = parameters(), parameters()
    world = World(0, 1, torch.device("cpu"))
    updated = Update(weights_of(ours), spec(**fields), "fp32", world, STEPS)
    optimizers = reference(theirs)
    for _ in range(STEPS):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        updated.apply()
        for optimizer in optimizers:
            optimizer.step()
    before = parameters()
    for own, other, first in zip(ours, theirs, before, strict=True):
        assert torch.allclose(own, other, atol=1e-6, rtol=1e-6)
        assert not torch.allclose(own, first, atol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor", "muon"])
@pytest.mark.parametrize("good_steps", [0, 2])
def test_a_refused_update_changes_neither_weights_nor_state(name: str, good_steps: int) -> None:
    values = parameters()
    weights = weights_of(values)
    updated = Update(weights, spec(name=name), "fp16", World(0, 1, torch.device("cpu")), STEPS)

    def apply(gradient: float) -> list[torch.Tensor]:
        for value in values:
            value.grad = torch.full_like(value, gradient)
        updated.apply()
        states = [tensor for weight in weights for tensor in updated.state(weight).values()]
        return [tensor.detach().clone() for tensor in (*values, *states)]

    before = [apply(1.0) for _ in range(good_steps)]
    kept = before[-1] if before else [*parameters()]
    after = apply(float("inf"))
    assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=False))
    assert all(torch.isfinite(tensor).all() for tensor in apply(1.0))


def test_flat_weights_have_the_same_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU's kernel does, in PyTorch's operations."""
    flat_on_cpu.in_test(monkeypatch)
    ours, theirs = parameters(), parameters()
    world = World(0, 1, torch.device("cpu"))
    updated = Update(weights_of(ours), spec(), "fp32", world, STEPS)
    optimizer = torch.optim.AdamW(groups(theirs))
    for _ in range(STEPS):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        updated.apply()
        optimizer.step()
    for own, other in zip(ours, theirs, strict=True):
        assert torch.allclose(own, other, atol=1e-6)


def rates(kind: str, auto: Any, heads: Sequence[str], **fields: Any) -> dict[str, Weight]:
    """Weights of a small model with two layers, by name."""
    model = auto.from_config(tiny.config_of(kind))
    weights = [Weight(name, value, value) for name, value in model.named_parameters()]
    task = ModelSpec(base="base")
    found = parts.with_rates(weights, model, heads, spec(**fields), task)
    return {weight.name: weight for weight in found}


CLASSIFIER = transformers.AutoModelForSequenceClassification


def test_each_layer_learns_slower_than_the_one_above() -> None:
    found = rates("bert", CLASSIFIER, ("classifier",), layerwise_lr_decay=0.5, head_lr=0.1)
    expected = {
        "classifier.weight": 5.0,
        "bert.pooler.dense.weight": 1.0,
        "bert.encoder.layer.1.output.dense.bias": 0.5,
        "bert.encoder.layer.0.attention.self.query.weight": 0.25,
        "bert.embeddings.word_embeddings.weight": 0.125,
        "bert.embeddings.LayerNorm.weight": 0.125,
    }
    assert {name: found[name].rate for name in expected} == pytest.approx(expected)
    in_layers = {name for name, weight in found.items() if weight.is_in_layer}
    assert in_layers == {name for name in found if ".encoder.layer." in name}


@pytest.mark.parametrize(
    ("kind", "auto", "expected"),
    [
        (
            "gpt2",
            transformers.AutoModelForCausalLM,
            {
                "transformer.wte.weight": 0.125,
                "transformer.h.0.mlp.c_fc.weight": 0.25,
                "transformer.ln_f.weight": 1.0,
            },
        ),
        (
            "t5",
            transformers.AutoModelForSeq2SeqLM,
            {
                "shared.weight": 0.125,
                "encoder.block.1.layer.0.SelfAttention.q.weight": 0.5,
                "decoder.block.0.layer.0.SelfAttention.q.weight": 0.25,
                "decoder.final_layer_norm.weight": 1.0,
            },
        ),
        (
            "opt",
            transformers.AutoModelForCausalLM,
            {
                "model.decoder.embed_positions.weight": 0.125,
                "model.decoder.layers.0.fc1.weight": 0.25,
                "model.decoder.final_layer_norm.weight": 1.0,
            },
        ),
    ],
)
def test_layers_are_found_in_other_architectures(
    kind: str, auto: Any, expected: dict[str, float]
) -> None:
    found = rates(kind, auto, (), layerwise_lr_decay=0.5)
    assert {name: found[name].rate for name in expected} == pytest.approx(expected)


def test_a_rate_for_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="head_lr: base has no head of its own"):
        rates("gpt2", transformers.AutoModelForCausalLM, (), head_lr=0.1)


@pytest.mark.parametrize("name", ["adafactor", "sgd", "muon"])
def test_each_optimizer_resumes_bit_identically(
    name: str, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    fields = {"optimizer": spec(name=name, layerwise_lr_decay=0.9)}
    config = training_config(reviews, tiny_model, **fields)
    whole = train(config, lambda _: None, tmp_path / "whole")
    stopped = training_config(reviews, tiny_model, **fields, stop_after_s=0.0)
    first = train(stopped, lambda _: None, tmp_path / "cut")
    assert first.step < whole.step
    resumed = train(config, lambda _: None, tmp_path / "cut")
    ours, other = (Path(found.path) / "model/model.safetensors" for found in (resumed, whole))
    assert ours.read_bytes() == other.read_bytes()


def test_a_checkpoint_of_another_optimizer_is_refused(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    train(training_config(reviews, tiny_model), lambda _: None, tmp_path)
    fields = {"optimizer": spec(name="adafactor"), "epochs": 2.0, "accepts_changes": True}
    other = training_config(reviews, tiny_model, **fields)
    with pytest.raises(CheckpointError, match="does not hold the exp_avg_sq_row of"):
        train(other, lambda _: None, tmp_path)


@pytest.mark.workers
def test_shards_take_the_steps_of_replicas(reviews: Path, tiny_model: str, tmp_path: Path) -> None:
    """Momentum, and rates of parameter groups, on shards."""
    optimizer = spec(name="sgd", layerwise_lr_decay=0.5, head_lr=0.1)
    fields = {"optimizer": optimizer, "micro_batch_size": 16}
    events: list[Event] = []
    train(training_config(reviews, tiny_model, **fields), events.append)
    expected = [event.loss for event in events if isinstance(event, Stepped)]
    sharded = training_config(reviews, tiny_model, strategy="zero2", **fields)
    found = workers.losses(workers.run(sharded, 2, tmp_path, tmp_path / "checkpoints"))
    assert found == pytest.approx(expected, abs=1e-5)
