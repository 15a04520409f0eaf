"""From gradients to new weights without waiting for the device: clip, scale, guard, AdamW."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from jobs.spec.train import OptimizerSpec, Precision
from jobs.training.model.weight import Weight
from jobs.training.world import World

FIRST_LOSS_SCALE, SCALE_STEP, GOOD_STEPS_TO_GROW = 65536.0, 2.0, 2000
"""fp16: the loss is scaled up, halved on overflow and doubled after this many good steps; the
values of torch.amp.GradScaler."""
NORM_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


class Update:
    """AdamW behind clipping, loss scaling and a guard, all decided on the device.

    The guard: gradients that are not finite change nothing. In fp16 the loss scale is halved and
    training goes on; in other precisions every later update is refused too (`halted`), so that the
    weights stay as they were before the bad batch until the host looks at the losses.
    """

    def __init__(
        self, weights: Sequence[Weight], spec: OptimizerSpec, precision: Precision, world: World
    ) -> None:
        self.weights = list(weights)
        self.device = self.weights[0].target.device
        self._world = world
        self._is_sharded = any(isinstance(w.source, DTensor) for w in self.weights)
        self._max_norm = spec.max_grad_norm
        self._scales_loss = precision == "fp16"

        def scalar(value: float) -> torch.Tensor:
            return torch.tensor(value, dtype=torch.float32, device=self.device)

        self.lr = scalar(spec.lr)
        self.loss_scale = scalar(FIRST_LOSS_SCALE if self._scales_loss else 1.0)
        self.good_steps = scalar(0.0)
        self.halted = scalar(0.0)
        self._divisor = scalar(1.0)
        self._refused = scalar(0.0)
        self.optimizer = _adamw(self.weights, spec, self.lr)
        # AdamW's kernel divides gradients and skips the update by itself, as for a GradScaler
        self.optimizer.grad_scale = self._divisor  # type: ignore[attr-defined]
        self.optimizer.found_inf = self._refused  # type: ignore[attr-defined]
        for weight in self.weights:  # made here, not by the first step, so that it can be restored
            self.optimizer.state[weight.target] = {
                "step": scalar(0.0),
                "exp_avg": torch.zeros_like(weight.target),
                "exp_avg_sq": torch.zeros_like(weight.target),
            }
        self._copies = [weight for weight in self.weights if weight.is_copied]
        for weight in self._copies:
            weight.target.grad = torch.zeros_like(weight.target)

    def clear(self) -> None:
        """Drop gradients, so that autograd hands over fresh ones instead of adding to old ones."""
        for weight in self.weights:
            weight.source.grad = None

    @torch.no_grad()
    def apply(self) -> None:
        """Update every weight from the gradients that are there."""
        gradients = self._collect()
        norm = self._norm(gradients)
        factor = self._max_norm / (norm / self.loss_scale + NORM_EPSILON)
        self._divisor.copy_(self.loss_scale / factor.clamp(max=1.0))
        overflow = (~torch.isfinite(norm)).float()
        if self._scales_loss:
            self._adapt_scale(overflow)
        else:
            self.halted.copy_(torch.maximum(self.halted, overflow))
        self._refused.copy_(torch.maximum(self.halted, overflow))
        self.optimizer.step()
        self.refresh_copies()

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Bring the 16-bit copies up to date with their originals."""
        if self._copies:
            torch._foreach_copy_(
                [weight.source.detach() for weight in self._copies],
                [weight.target.detach() for weight in self._copies],
            )

    def _collect(self) -> list[torch.Tensor]:
        pairs = [(weight, weight.gradient()) for weight in self.weights]
        wide = [(weight.target.grad, g) for weight, g in pairs if weight.is_copied]
        if wide:
            torch._foreach_copy_([a for a, _ in wide], [b for _, b in wide])  # type: ignore[misc]
        for weight, gradient in pairs:
            if not weight.is_copied:
                weight.target.grad = gradient
        return [w.target.grad for w in self.weights if w.target.grad is not None]

    def _norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        norm = torch.nn.utils.get_total_norm(gradients)
        if not self._is_sharded:
            return norm
        square = norm**2
        group = self._world.control if square.device.type == "cpu" else None
        dist.all_reduce(square, group=group)
        return square.sqrt()

    def _adapt_scale(self, overflow: torch.Tensor) -> None:
        good = (self.good_steps + 1) * (1 - overflow)
        grown = (good >= GOOD_STEPS_TO_GROW).float()
        factor = torch.where(overflow > 0, 1 / SCALE_STEP, 1 + grown * (SCALE_STEP - 1))
        moving = 1 - self.halted  # warm-up steps leave no trace
        self.loss_scale.copy_(torch.where(moving > 0, self.loss_scale * factor, self.loss_scale))
        self.good_steps.copy_(torch.where(moving > 0, good * (1 - grown), self.good_steps))


def _adamw(
    weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor
) -> torch.optim.Optimizer:
    """AdamW with decay on matrices alone; biases and normalisation weights are vectors."""
    groups = [
        {
            "params": [w.target for w in weights if w.source.dim() > 1],
            "weight_decay": spec.weight_decay,
        },
        {"params": [w.target for w in weights if w.source.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    on_gpu = lr.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=lr, fused=True, capturable=on_gpu)
