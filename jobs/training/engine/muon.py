"""Muon: orthogonal updates of the matrices in layers, and AdamW for all other weights."""

import math
from collections.abc import Sequence

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.engine.fused import TorchAdamW
from jobs.training.engine.optimizer import SeparateWeights, State, decay_of
from jobs.training.model.weight import Weight

COEFFICIENTS, ITERATIONS, EPSILON = (3.4445, -4.775, 2.0315), 5, 1e-7
"""Defaults of PyTorch's Muon."""
SIZE_OF_ADAMW = 0.2
"""Usual root mean square of an update of AdamW, to which updates are scaled, so that one learning
rate suits both.

Source: Liu et al., 2025, "Muon is scalable for LLM training"."""


class Muon(SeparateWeights):
    """Muon for the matrices in repeated layers; AdamW for embeddings, heads and vectors.

    Source: Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks".
    """

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor) -> None:
        super().__init__(weights)
        self._momentum, self._spec = spec.momentum_or_default, spec
        self._matrices = [weight for weight in weights if is_orthogonal(weight)]
        others = [weight for weight in weights if not is_orthogonal(weight)]
        self._others = TorchAdamW(others, spec, lr) if others else None
        self._buffers = {id(w.target): torch.zeros_like(w.target) for w in self._matrices}

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates every weight; `lr` must be the tensor that the constructor received."""
        kept = 1 - refused
        for weight in self._matrices:
            if weight.target.grad is not None:
                gradient = torch.where(refused > 0, 0.0, weight.target.grad / divisor)
                self._update(weight, gradient, lr * (weight.rate * kept), kept)
        if self._others:
            self._others.step(lr, divisor, refused)
        self.refresh_copies()

    def use(self, spec: OptimizerSpec) -> None:
        """Takes another weight decay."""
        self._spec = spec
        if self._others:
            self._others.use(spec)

    def state(self, weight: Weight) -> State:
        """Returns the momentum of a matrix, or the state of AdamW."""
        buffer = self._buffers.get(id(weight.target))
        if buffer is not None:
            return {"momentum_buffer": buffer}
        assert self._others
        return self._others.state(weight)

    def _update(
        self, weight: Weight, gradient: torch.Tensor, rate: torch.Tensor, kept: torch.Tensor
    ) -> None:
        buffer, target = self._buffers[id(weight.target)], weight.target.detach()
        buffer.lerp_(gradient, (1 - self._momentum) * kept)
        change = orthogonal(gradient.lerp(buffer, self._momentum))
        target.mul_(1 - rate * decay_of(weight, self._spec))
        target.sub_(change.float() * (rate * (SIZE_OF_ADAMW * math.sqrt(max(target.shape)))))


def is_orthogonal(weight: Weight) -> bool:
    """Returns whether Muon updates a weight: a matrix in a repeated layer."""
    return weight.is_in_layer and weight.target.dim() == 2


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Returns nearly the nearest orthogonal matrix, in bf16, by Newton-Schulz iterations."""
    first, second, third = COEFFICIENTS
    found = matrix.bfloat16()
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:
        found = found.T
    found = found / found.norm().clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(
            found, torch.addmm(gram, gram, gram, beta=second, alpha=third), found, beta=first
        )
    return found.T if is_tall else found
