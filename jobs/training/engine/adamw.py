"""AdamW over all weights, which divides gradients and skips updates without asking the host."""

from collections.abc import Sequence
from typing import Protocol

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.model.weight import Weight

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""PyTorch's defaults."""

State = dict[str, torch.Tensor]


class AdamW(Protocol):
    """Holds the moments of all weights."""

    def take_gradients(self) -> None:
        """Take the gradients from the weights."""

    def norm(self) -> torch.Tensor:
        """L2 norm over the gradients that were taken."""

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Update every weight with its gradient over `divisor`, unless `refused` is 1."""

    def state(self, weight: Weight) -> State:
        """`exp_avg`, `exp_avg_sq` and `step` of a weight, to save or to overwrite."""

    def settle(self) -> None:
        """Bring weights and moments together that workers updated apart."""

    def refresh_copies(self) -> None:
        """Bring 16-bit copies up to date with their originals."""


class TorchAdamW:
    """PyTorch's fused AdamW: on any device, and for weights in shards."""

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
        for weight in weights:  # made here, not by the first step, so that it can be restored
            self._optimizer.state[weight.target] = {
                "step": torch.zeros((), device=weight.target.device),
                "exp_avg": torch.zeros_like(weight.target),
                "exp_avg_sq": torch.zeros_like(weight.target),
            }
        for weight in self._copies:
            weight.target.grad = torch.zeros_like(weight.target)

    def take_gradients(self) -> None:
        """Hand over gradients, widened where the forward pass uses a copy."""
        wide = [(w.target.grad, w.gradient()) for w in self._copies]
        if wide:
            torch._foreach_copy_([a for a, _ in wide], [b for _, b in wide])  # type: ignore[misc]
        for weight in self._weights:
            if not weight.is_copied:
                weight.target.grad = weight.gradient()

    def norm(self) -> torch.Tensor:
        """L2 norm over all gradients that are there."""
        found = [w.target.grad for w in self._weights if w.target.grad is not None]
        return torch.nn.utils.get_total_norm(found)

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Update every weight; the learning rate is the tensor given at the start."""
        # the fused kernel divides and skips by itself, as it does for a GradScaler
        self._optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        self._optimizer.found_inf = refused  # type: ignore[attr-defined]
        self._optimizer.step()
        self.refresh_copies()

    def state(self, weight: Weight) -> State:
        """The moments of a weight."""
        state: State = self._optimizer.state[weight.target]
        return state

    def settle(self) -> None:
        """Every worker updates all of what it holds."""

    def refresh_copies(self) -> None:
        """Bring 16-bit copies up to date."""
        if self._copies:
            copies = [weight.source.detach() for weight in self._copies]
            torch._foreach_copy_(copies, [weight.target.detach() for weight in self._copies])


def decay_of(weight: Weight, spec: OptimizerSpec) -> float:
    """Decay is for matrices alone; biases and normalisation weights are vectors."""
    return spec.weight_decay if weight.source.dim() > 1 else 0.0
