"""Adafactor: second moments of a matrix as the product of a row and a column."""

from collections.abc import Sequence

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.engine.optimizer import SeparateWeights, State, decay_of
from jobs.training.model.weight import Weight

DECAY_RATE, EPSILON, CLIP_THRESHOLD = -0.8, 1e-30, 1.0
"""Defaults of Adafactor in transformers."""


class Adafactor(SeparateWeights):
    """Adafactor with the learning rate of the schedule, without a first moment.

    It is that of transformers' Trainer: neither relative steps nor scaling by a weight's size.

    Source: Shazeer and Stern, 2018, "Adafactor: Adaptive learning rates with sublinear
    memory cost".
    """

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, _: torch.Tensor) -> None:
        super().__init__(weights)
        self.use(spec)
        self._step = torch.zeros((), device=weights[0].target.device)
        self._states = {id(weight.target): self._first_state(weight.target) for weight in weights}

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates every weight that has a gradient."""
        kept = 1 - refused
        self._step.add_(kept)
        # a refused first step leaves the count at 0, where the power is infinite
        share = self._step.clamp(min=1).pow(DECAY_RATE) * kept
        for weight, decay in zip(self.weights, self._decays, strict=True):
            gradient = weight.target.grad
            if gradient is None:
                continue
            scaled = torch.where(refused > 0, 0.0, gradient / divisor)
            change = self._scaled(scaled, self._states[id(weight.target)], share)
            change = change / (_rms(change) / CLIP_THRESHOLD).clamp(min=1.0)
            rate = lr * (weight.rate * kept)
            weight.target.detach().mul_(1 - rate * decay)
            weight.target.detach().sub_(torch.where(refused > 0, 0.0, change * rate))
        self.refresh_copies()

    def use(self, spec: OptimizerSpec) -> None:
        """Takes another weight decay."""
        self._decays = [decay_of(weight, spec) for weight in self.weights]

    def state(self, weight: Weight) -> State:
        """Returns the averages of squares of a weight; all weights share the step."""
        return self._states[id(weight.target)]

    def _first_state(self, target: torch.Tensor) -> State:
        if target.dim() < 2:
            return {"step": self._step, "exp_avg_sq": torch.zeros_like(target)}
        shape = target.shape
        return {
            "step": self._step,
            "exp_avg_sq_row": target.new_zeros(shape[:-1]),
            "exp_avg_sq_col": target.new_zeros(shape[:-2] + shape[-1:]),
        }

    @staticmethod
    def _scaled(gradient: torch.Tensor, state: State, share: torch.Tensor) -> torch.Tensor:
        """Moves the averages by `share` to the gradient's squares; returns the scaled gradient."""
        squares = gradient**2 + EPSILON
        if "exp_avg_sq" in state:
            return gradient * state["exp_avg_sq"].lerp_(squares, share).rsqrt()
        row = state["exp_avg_sq_row"].lerp_(squares.mean(dim=-1), share)
        column = state["exp_avg_sq_col"].lerp_(squares.mean(dim=-2), share)
        by_row = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
        return gradient * (by_row * column.rsqrt().unsqueeze(-2))


def _rms(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean().sqrt()
