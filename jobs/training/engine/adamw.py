"""AdamW over all weights; it scales gradients and skips updates without waiting for the host."""

from collections.abc import Sequence
from typing import Protocol

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.model.weight import Weight, copy_gradients

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Defaults of PyTorch's AdamW."""

State = dict[str, torch.Tensor]


class AdamW(Protocol):
    """Updates all weights and holds their moments."""

    def take_gradients(self) -> None:
        """Takes the gradients that autograd accumulated."""

    def norm(self) -> torch.Tensor:
        """Returns the L2 norm of all gradients that were taken, a scalar tensor."""

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates every weight with its gradient divided by `divisor`; does nothing if `refused`.

        All arguments are scalar tensors on the device; `refused` is 0 or 1.
        """

    def state(self, weight: Weight) -> State:
        """Returns `exp_avg`, `exp_avg_sq` and `step` of a weight, to save or to overwrite."""

    def synchronize(self, *, with_moments: bool = True) -> None:
        """Gathers the weights, and the moments too, that each worker updated for the others."""

    def refresh_copies(self) -> None:
        """Copies weights into their 16-bit copies."""


class TorchAdamW:
    """PyTorch's fused AdamW, for any device and for sharded weights."""

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor) -> None:
        self._weights = weights
        self._copies = [weight for weight in weights if weight.is_copied]
        decays = {decay_of(weight, spec) for weight in weights}
        groups = [
            {"params": [w.target for w in weights if decay_of(w, spec) == d], "weight_decay": d}
            for d in sorted(decays)
        ]
        on_gpu = lr.device.type == "cuda"
        self._optimizer = torch.optim.AdamW(
            groups, lr=lr, betas=(BETA_1, BETA_2), eps=EPSILON, fused=True, capturable=on_gpu
        )
        for weight in weights:  # not left to the first step, so that a checkpoint can be restored
            self._optimizer.state[weight.target] = {
                "step": torch.zeros((), device=weight.target.device),
                "exp_avg": torch.zeros_like(weight.target),
                "exp_avg_sq": torch.zeros_like(weight.target),
            }
        self._wide = [torch.zeros_like(weight.target) for weight in self._copies]
        for weight, gradient in zip(self._copies, self._wide, strict=True):
            weight.target.grad = gradient

    def take_gradients(self) -> None:
        """Takes the gradients; those of 16-bit copies are cast to fp32, and zero if missing."""
        given = (weight.gradient() for weight in self._copies)
        copy_gradients(zip(self._wide, given, strict=True))
        for weight in self._weights:
            if not weight.is_copied:
                weight.target.grad = weight.gradient()

    def norm(self) -> torch.Tensor:
        """Returns the L2 norm of all gradients; weights without a gradient are skipped."""
        found = [w.target.grad for w in self._weights if w.target.grad is not None]
        return torch.nn.utils.get_total_norm(found)

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates every weight; `lr` must be the tensor that the constructor received."""
        # the fused kernel divides and skips on the device, as it does for a GradScaler
        self._optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        self._optimizer.found_inf = refused  # type: ignore[attr-defined]
        self._optimizer.step()
        self.refresh_copies()

    def state(self, weight: Weight) -> State:
        """Returns the moments of a weight."""
        state: State = self._optimizer.state[weight.target]
        return state

    def synchronize(self, *, with_moments: bool = True) -> None:
        """Does nothing: every worker updates all weights that it holds."""

    def refresh_copies(self) -> None:
        """Copies weights into their 16-bit copies."""
        if self._copies:
            copies = [weight.source.detach() for weight in self._copies]
            torch._foreach_copy_(copies, [weight.target.detach() for weight in self._copies])


def decay_of(weight: Weight, spec: OptimizerSpec) -> float:
    """Returns the weight decay of a weight: 0 for vectors, which are biases and normalisation."""
    return spec.weight_decay if weight.source.dim() > 1 else 0.0
