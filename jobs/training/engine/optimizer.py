"""What an optimizer does for an update, and the gradients of weights that lie apart."""

from collections.abc import Sequence
from typing import Protocol

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.model.weight import Weight, copy_gradients

State = dict[str, torch.Tensor]


class Optimizer(Protocol):
    """Updates all weights and holds their state; it never waits for the device."""

    def take_gradients(self) -> None:
        """Takes the gradients that autograd accumulated."""

    def norm(self) -> torch.Tensor:
        """Returns the L2 norm of all gradients that were taken, a scalar tensor."""

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates every weight with its gradient divided by `divisor`; does nothing if `refused`.

        All arguments are scalar tensors on the device; `refused` is 0 or 1.
        """

    def state(self, weight: Weight) -> State:
        """Returns the tensors that are kept for a weight, by name, to save or to overwrite.

        A tensor of the weight's own shape is sharded as the weight is; others are whole.
        """

    def use(self, spec: OptimizerSpec) -> None:
        """Takes the weight decay of another `train.optimizer` section from the next step on."""

    def synchronize(self, *, with_moments: bool = True) -> None:
        """Gathers the weights, and the state too, that each worker updated for the others."""

    def refresh_copies(self) -> None:
        """Copies weights into their 16-bit copies."""


class SeparateWeights:
    """Takes the gradients of weights that are tensors of their own, on any device."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.weights = list(weights)
        self._copies = [weight for weight in weights if weight.is_copied]
        self._wide = [torch.zeros_like(weight.target) for weight in self._copies]
        for weight, gradient in zip(self._copies, self._wide, strict=True):
            weight.target.grad = gradient

    def take_gradients(self) -> None:
        """Takes the gradients; those of 16-bit copies are cast to fp32, and zero if missing."""
        given = (weight.gradient() for weight in self._copies)
        copy_gradients(zip(self._wide, given, strict=True))
        for weight in self.weights:
            if not weight.is_copied:
                weight.target.grad = weight.gradient()

    def norm(self) -> torch.Tensor:
        """Returns the L2 norm of all gradients; weights without a gradient are skipped."""
        found = [w.target.grad for w in self.weights if w.target.grad is not None]
        return torch.nn.utils.get_total_norm(found)

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
