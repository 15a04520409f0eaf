"""Turns gradients into new weights without waiting for the device: clip, scale, guard, update."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from jobs.spec.train import OptimizerName, OptimizerSpec, Precision
from jobs.training.engine import kernels
from jobs.training.engine.adafactor import Adafactor
from jobs.training.engine.flat_params import FlatAdamW
from jobs.training.engine.fused import TorchAdamW, TorchSgd
from jobs.training.engine.gradient_exchange import GradientExchange, WeightGather
from jobs.training.engine.muon import Muon
from jobs.training.engine.optimizer import Optimizer, State
from jobs.training.model.precision import AUTOCAST
from jobs.training.model.weight import Weight
from jobs.training.world import World

FIRST_LOSS_SCALE, SCALE_STEP, GOOD_STEPS_TO_GROW = 65536.0, 2.0, 2000
"""Dynamic loss scaling for fp16: the first scale, its factor on overflow and growth, and the steps
without overflow before it grows; the values of torch.amp.GradScaler."""
NORM_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


class Update:
    """An optimizer with gradient clipping, loss scaling and a guard, all computed on the device.

    The guard skips an update with gradients that are not finite. In fp16 the loss scale is then
    halved and training continues. In other precisions every later update is skipped too (`halted`),
    so that the weights stay as before the bad batch until the host reads the losses.
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
        self._name, self._max_norm = spec.name, spec.max_grad_norm
        self._scales_loss = precision == "fp16"

        def scalar(value: float) -> torch.Tensor:
            return torch.tensor(value, dtype=torch.float32, device=self.device)

        self.lr = scalar(spec.lr)
        self.loss_scale = scalar(FIRST_LOSS_SCALE if self._scales_loss else 1.0)
        self.good_steps = scalar(0.0)
        self.halted = scalar(0.0)
        self._exchange: GradientExchange | None = None
        self._gather: WeightGather | None = None
        if spec.name == "adamw" and uses_flat_weights(self.weights):
            flat = FlatAdamW(self.weights, spec, steps, world)
            self._optimizer: Optimizer = flat
            if world.size > 1:
                is_narrow = precision in AUTOCAST
                self._exchange = GradientExchange(flat, self.weights, in_16_bits=is_narrow)
        else:
            self._optimizer = _separate(self.weights, spec, self.lr)

    @property
    def remark(self) -> str:
        """What the optimizer gives up on this device; empty if nothing."""
        if isinstance(self._optimizer, FlatAdamW) or not uses_flat_weights(self.weights):
            return ""
        return (
            f"{self._name} updates each weight by itself, and PyTorch's DDP exchanges gradients:"
            " the kernel over flat weights is AdamW's alone"
        )

    @property
    def exchanges(self) -> bool:
        """Whether this class sums gradients over workers, instead of a wrapper of the model."""
        return self._exchange is not None

    def attach(
        self, model: torch.nn.Module, layers: Sequence[torch.nn.Module], passes: int
    ) -> None:
        """Registers hooks that exchange gradients and weights while `model` runs.

        `layers` are the repeated layers; before each of them the device waits for its weights.
        `passes` is the number of passes of a step.
        """
        if self._exchange and isinstance(self._optimizer, FlatAdamW):
            self._exchange.attach(model, passes)
            self._gather = WeightGather(self._optimizer, self.weights, model, layers)

    def clear(self) -> None:
        """Drops all gradients, so that autograd stores new ones instead of adding to them."""
        for weight in self.weights:
            weight.source.grad = None

    def begin(self) -> None:
        """Starts a step: drops gradients and gathers the weights that other workers updated."""
        self.clear()
        if self._exchange:
            self._exchange.begin()
        if self._gather:
            self._gather.start()

    def end_forward(self) -> None:
        """Must be called after each forward pass."""
        if self._gather:
            self._gather.finish()

    def synchronize(self, *, with_moments: bool = True) -> None:
        """Gathers weights and moments on every worker, before they are read; all must call it.

        `with_moments`: False if only the weights are read, which are a third of the bytes.
        """
        self._optimizer.synchronize(with_moments=with_moments)

    def enable_exchange(self) -> None:
        """Lets the next backward pass, which is the last of the step, exchange its gradients."""
        if self._exchange:
            self._exchange.enable()

    @torch.no_grad()
    def apply(self, *, exchanged: bool = True) -> torch.Tensor:
        """Updates every weight and returns the norm of all gradients before clipping, ().

        `exchanged`: whether the backward pass exchanged the gradients.
        """
        if self._exchange and exchanged:
            self._exchange.finish()
        else:
            self._optimizer.take_gradients()
        norm = self._norm()
        unscaled = norm / self.loss_scale
        factor = self._max_norm / (unscaled + NORM_EPSILON)
        divisor = self.loss_scale / factor.clamp(max=1.0)
        overflow = (~torch.isfinite(norm)).float()
        if self._scales_loss:
            self._adapt_scale(overflow)
        else:
            self.halted.copy_(torch.maximum(self.halted, overflow))
        self._optimizer.step(self.lr, divisor, torch.maximum(self.halted, overflow))
        return unscaled

    @property
    def reads_decay(self) -> bool:
        """Whether captured steps read the weight decay that `use` sets."""
        return isinstance(self._optimizer, FlatAdamW)

    def use(self, spec: OptimizerSpec) -> None:
        """Takes the weight decay of an optimizer that differs in nothing else but its rate."""
        self._optimizer.use(spec)

    def state(self, weight: Weight) -> State:
        """Returns the optimizer's tensors of a weight by name, to save or to overwrite."""
        return self._optimizer.state(weight)

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Copies loaded weights into their 16-bit copies."""
        self._optimizer.refresh_copies()

    def _norm(self) -> torch.Tensor:
        norm = self._optimizer.norm()
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
        is_active = self.halted == 0  # steps of warm-up must not change the scale
        self.loss_scale.copy_(torch.where(is_active, self.loss_scale * factor, self.loss_scale))
        self.good_steps.copy_(torch.where(is_active, good * (1 - grown), self.good_steps))


def _separate(weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor) -> Optimizer:
    """Returns the optimizer of a job for weights that are tensors of their own."""
    kinds: dict[OptimizerName, Callable[..., Optimizer]]
    kinds = {"adamw": TorchAdamW, "adafactor": Adafactor, "sgd": TorchSgd, "muon": Muon}
    return kinds[spec.name](weights, spec, lr)


def uses_flat_weights(weights: Sequence[Weight]) -> bool:
    """Returns whether weights are kept in flat tensors: unsharded, on a GPU with our kernels."""
    first = weights[0]
    on_gpu = first.target.device.type == "cuda" and kernels.available
    return on_gpu and not isinstance(first.source, DTensor)
