"""From gradients to new weights without waiting for the device: clip, scale, guard, AdamW."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from jobs.spec.train import OptimizerSpec, Precision
from jobs.training.engine import kernels
from jobs.training.engine.adamw import AdamW, State, TorchAdamW
from jobs.training.engine.flat_params import FlatAdamW
from jobs.training.engine.gradient_exchange import Exchange, Refresh
from jobs.training.model.precision import AUTOCAST
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
        self,
        weights: Sequence[Weight],
        spec: OptimizerSpec,
        precision: Precision,
        world: World,
        steps: int,
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
        self._exchange: Exchange | None = None
        self._refresh: Refresh | None = None
        if uses_flat_weights(self.weights):
            flat = FlatAdamW(self.weights, spec, steps, world)
            self._adamw: AdamW = flat
            if world.size > 1:
                is_narrow = precision in AUTOCAST
                self._exchange = Exchange(flat, self.weights, in_16_bits=is_narrow)
        else:
            self._adamw = TorchAdamW(self.weights, spec, self.lr)

    @property
    def exchanges(self) -> bool:
        """Whether gradients are summed over workers here, and not by a wrapper of the model."""
        return self._exchange is not None

    def follow(
        self, model: torch.nn.Module, layers: Sequence[torch.nn.Module], passes: int
    ) -> None:
        """Exchange with other workers while `model` runs, `passes` times a step.

        `layers` are its repeated ones, before each of which the device waits for its weights.
        """
        if self._exchange and isinstance(self._adamw, FlatAdamW):
            self._exchange.follow(model, passes)
            self._refresh = Refresh(self._adamw, self.weights, model, layers)

    def clear(self) -> None:
        """Drop gradients, so that autograd hands over fresh ones instead of adding to old ones."""
        for weight in self.weights:
            weight.source.grad = None

    def begin(self) -> None:
        """Before a step: drop gradients and fetch what other workers updated."""
        self.clear()
        if self._exchange:
            self._exchange.begin()
        if self._refresh:
            self._refresh.start()

    def fetched(self) -> None:
        """After a forward pass."""
        if self._refresh:
            self._refresh.finish()

    def settle(self) -> None:
        """Before weights or moments are read: make them whole on every worker, all together."""
        self._adamw.settle()

    def arm(self) -> None:
        """Let workers exchange what the next backward pass makes."""
        if self._exchange:
            self._exchange.arm()

    @torch.no_grad()
    def apply(self, *, exchanged: bool = True) -> None:
        """Update every weight from the gradients that are there."""
        if self._exchange and exchanged:
            self._exchange.finish()
        else:
            self._adamw.take_gradients()
        norm = self._norm()
        factor = self._max_norm / (norm / self.loss_scale + NORM_EPSILON)
        divisor = self.loss_scale / factor.clamp(max=1.0)
        overflow = (~torch.isfinite(norm)).float()
        if self._scales_loss:
            self._adapt_scale(overflow)
        else:
            self.halted.copy_(torch.maximum(self.halted, overflow))
        self._adamw.step(self.lr, divisor, torch.maximum(self.halted, overflow))

    def state(self, weight: Weight) -> State:
        """Moments and step count of a weight, to save or to overwrite."""
        return self._adamw.state(weight)

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Bring the 16-bit copies up to date with weights that were loaded."""
        self._adamw.refresh_copies()

    def _norm(self) -> torch.Tensor:
        norm = self._adamw.norm()
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
        moving = self.halted == 0  # warm-up steps leave no trace
        self.loss_scale.copy_(torch.where(moving, self.loss_scale * factor, self.loss_scale))
        self.good_steps.copy_(torch.where(moving, good * (1 - grown), self.good_steps))


def uses_flat_weights(weights: Sequence[Weight]) -> bool:
    """Whether weights are kept in flat tensors: whole ones, on GPUs for which there are kernels."""
    first = weights[0]
    on_gpu = first.target.device.type == "cuda" and kernels.available
    return on_gpu and not isinstance(first.source, DTensor)
