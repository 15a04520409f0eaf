"""PyTorch's fused AdamW and SGD, which divide gradients and skip updates on the device."""

from collections.abc import Sequence
from typing import Any

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.engine.optimizer import SeparateWeights, State, decay_of
from jobs.training.model.weight import Weight

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Defaults of PyTorch's AdamW."""


class FusedOptimizer(SeparateWeights):
    """One of PyTorch's fused optimizers, for any device and for sharded weights."""

    def __init__(
        self,
        weights: Sequence[Weight],
        spec: OptimizerSpec,
        lr: torch.Tensor,
        kind: type[torch.optim.Optimizer],
        **settings: Any,
    ) -> None:
        super().__init__(weights)
        rates = sorted({weight.rate for weight in weights})
        self._rates = {rate: lr if rate == 1.0 else lr.clone() for rate in rates}
        groups = self._groups(spec)
        self._optimizer = kind(groups, lr=lr, fused=True, **settings)  # type: ignore[call-arg]

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates every weight; `lr` must be the tensor that the constructor received."""
        for rate, own in self._rates.items():
            if own is not lr:
                torch.mul(lr, rate, out=own)
        # the fused kernel divides and skips on the device, as it does for a GradScaler
        self._optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        self._optimizer.found_inf = refused  # type: ignore[attr-defined]
        self._optimizer.step()
        self.refresh_copies()

    def _groups(self, spec: OptimizerSpec) -> list[dict[str, Any]]:
        """Returns weights of the same decay and rate together, as PyTorch wants them."""
        kinds = sorted({(decay_of(weight, spec), weight.rate) for weight in self.weights})
        return [
            {
                "params": [w.target for w in self.weights if (decay_of(w, spec), w.rate) == (d, r)],
                "weight_decay": d,
                "lr": self._rates[r],
            }
            for d, r in kinds
        ]

    def use(self, spec: OptimizerSpec) -> None:
        """Takes another weight decay; what is kept for the weights stays."""
        self._optimizer.param_groups.clear()
        for group in self._groups(spec):
            self._optimizer.add_param_group(group)

    def state(self, weight: Weight) -> State:
        """Returns what PyTorch keeps for a weight."""
        state: State = self._optimizer.state[weight.target]
        return state


class TorchAdamW(FusedOptimizer):
    """PyTorch's fused AdamW."""

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor) -> None:
        settings = {"betas": (BETA_1, BETA_2), "eps": EPSILON}
        on_gpu = lr.device.type == "cuda"
        super().__init__(weights, spec, lr, torch.optim.AdamW, capturable=on_gpu, **settings)
        for weight in weights:  # not left to the first step, so that a checkpoint can be restored
            self._optimizer.state[weight.target] = {
                "step": torch.zeros((), device=weight.target.device),
                "exp_avg": torch.zeros_like(weight.target),
                "exp_avg_sq": torch.zeros_like(weight.target),
            }


class TorchSgd(FusedOptimizer):
    """PyTorch's fused SGD, with momentum; weight decay is added to the gradient."""

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor) -> None:
        momentum = spec.momentum_or_default
        settings = {"momentum": momentum, "nesterov": spec.nesterov}
        super().__init__(weights, spec, lr, torch.optim.SGD, **settings)
        if momentum:  # the first step makes the buffer its gradient, and so does a buffer of zeros
            for weight in weights:
                buffer = torch.zeros_like(weight.target)
                self._optimizer.state[weight.target] = {"momentum_buffer": buffer}
