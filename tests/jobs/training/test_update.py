"""The guarded update: clipping, loss scaling, and gradients that are not finite."""

import pytest
import torch

from jobs.spec.train import OptimizerSpec, Precision
from jobs.training.engine.update import FIRST_LOSS_SCALE, Update
from jobs.training.model.weight import Weight
from jobs.training.world import World


def updates(precision: Precision = "fp32", **fields: float) -> tuple[Update, torch.nn.Parameter]:
    """An update of one weight."""
    weight = torch.nn.Parameter(torch.ones(4, 4))
    spec = OptimizerSpec(lr=0.1, weight_decay=0.0, **fields)
    world = World(0, 1, torch.device("cpu"))
    return Update([Weight("w", weight, weight)], spec, precision, world, steps=10), weight


def test_gradients_that_are_not_finite_halt_every_later_update() -> None:
    update, weight = updates()
    for gradient in (float("nan"), 1.0):
        weight.grad = torch.full((4, 4), gradient)
        update.apply()
        assert torch.equal(weight, torch.ones(4, 4))
    assert update.halted.item() == 1


def test_an_overflow_in_fp16_skips_one_update_and_halves_the_scale() -> None:
    update, weight = updates("fp16")
    weight.grad = torch.full((4, 4), float("inf"))
    update.apply()
    assert torch.equal(weight, torch.ones(4, 4))
    assert update.loss_scale.item() == FIRST_LOSS_SCALE / 2
    weight.grad = torch.full((4, 4), update.loss_scale.item())
    update.apply()
    assert weight.max().item() == pytest.approx(0.9)
    assert update.state(update.weights[0])["step"].item() == 1


def test_the_loss_scale_grows_after_enough_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.training.engine.update.GOOD_STEPS_TO_GROW", 3)
    update, weight = updates("fp16")
    for _ in range(3):
        weight.grad = torch.ones(4, 4)
        update.apply()
    assert update.loss_scale.item() == 2 * FIRST_LOSS_SCALE
    assert update.good_steps.item() == 0


def test_clipping_is_that_of_pytorch() -> None:
    update, weight = updates(max_grad_norm=0.5)
    expected = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.AdamW([expected], lr=0.1, weight_decay=0.0)
    for step in range(5):
        for parameter in (weight, expected):
            parameter.grad = torch.arange(16.0).view(4, 4) - step
        update.apply()
        torch.nn.utils.clip_grad_norm_([expected], 0.5)
        optimizer.step()
    assert torch.allclose(weight, expected, atol=1e-6)


def test_a_copied_weight_without_a_gradient_is_updated_as_with_a_gradient_of_zero() -> None:
    """As a linear layer that a batch does not use, in bf16 on a CPU."""
    ends = []
    for gradient in (None, torch.zeros(4, 4, dtype=torch.bfloat16)):
        copies = [torch.nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16)) for _ in range(2)]
        weights = [Weight(str(n), copy.detach().float(), copy) for n, copy in enumerate(copies)]
        world = World(0, 1, torch.device("cpu"))
        update = Update(weights, OptimizerSpec(lr=0.1), "bf16", world, steps=10)
        for last in (torch.ones_like(copies[0]), gradient):
            copies[0].grad, copies[1].grad = torch.ones_like(copies[0]), last
            update.apply()
        ends.append([weight.target.clone() for weight in weights])
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    assert not torch.equal(ends[0][1], ends[0][0])  # an earlier step's gradient would be equal
