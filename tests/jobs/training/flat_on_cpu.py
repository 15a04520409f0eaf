"""Flat weights on CPUs: what the GPU's kernels do, in PyTorch's own operations."""

from typing import Any

import pytest
import torch

from jobs.training.engine import flat_params, kernels, update


def in_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep weights flat until the end of a test."""
    for module, name in (
        (flat_params, "BUCKET_BYTES"),
        (flat_params, "SHARED_FROM_BYTES"),
        (kernels, "adamw"),
        (kernels, "sum_of_squares"),
        (update, "uses_flat_weights"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    switch_on(0)


def switch_on(shared_from_bytes: int) -> None:
    """Let this process keep its weights flat, in small buckets."""
    flat_params.BUCKET_BYTES, flat_params.SHARED_FROM_BYTES = 2**14, shared_from_bytes
    kernels.adamw, kernels.sum_of_squares = adamw, sum_of_squares
    update.uses_flat_weights = lambda _: True


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """As the kernel of that name."""
    return values.float().square().sum()


def adamw(  # noqa: PLR0913 - as the kernel
    weights: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    gradients: torch.Tensor,
    copies: torch.Tensor | None,
    numbers: torch.Tensor,
    decays: torch.Tensor,
    rates: torch.Tensor,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """As the kernel of that name."""
    lr, divisor, refused, correction_1, correction_2 = numbers
    if refused:
        return
    lr = lr * rates.repeat_interleave(kernels.BLOCK)
    gradient: Any = gradients.float() / divisor
    first.lerp_(gradient, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    weights.mul_(1 - lr * decays.repeat_interleave(kernels.BLOCK))
    weights.sub_(lr / correction_1 * first / (second.sqrt() / correction_2 + epsilon))
    if copies is not None:
        copies.copy_(weights)
