"""AdamW over all weights, without waiting for the device: PyTorch's, and a faster one for GPUs.

Both divide gradients by a number and skip the update when told to, from tensors on the device.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch

from jobs.spec.train import OptimizerSpec
from jobs.training.engine import kernels
from jobs.training.model.weight import Weight

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""PyTorch's defaults."""
ALIGNMENT = 128
"""Elements that each weight's place in a flat tensor is a multiple of: matrix products want it."""

State = dict[str, torch.Tensor]


class AdamW(Protocol):
    """Holds the moments of all weights."""

    def norm(self) -> torch.Tensor:
        """L2 norm over all gradients, which it takes from the weights."""

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Update every weight with its gradient over `divisor`, unless `refused` is 1."""

    def state(self, weight: Weight) -> State:
        """`exp_avg`, `exp_avg_sq` and `step` of a weight, to save or to overwrite."""

    def refresh_copies(self) -> None:
        """Bring 16-bit copies up to date with their originals."""


class TorchAdamW:
    """PyTorch's fused AdamW: on any device, and for weights in shards."""

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, lr: torch.Tensor) -> None:
        self._weights = weights
        self._copies = [weight for weight in weights if weight.is_copied]
        groups = [
            {"params": [w.target for w in part], "weight_decay": decay}
            for part, decay in _by_decay(weights, spec)
        ]
        on_gpu = lr.device.type == "cuda"
        self._optimizer = torch.optim.AdamW(groups, lr=lr, fused=True, capturable=on_gpu)
        for weight in weights:  # made here, not by the first step, so that it can be restored
            self._optimizer.state[weight.target] = {
                "step": torch.zeros((), device=weight.target.device),
                "exp_avg": torch.zeros_like(weight.target),
                "exp_avg_sq": torch.zeros_like(weight.target),
            }
        for weight in self._copies:
            weight.target.grad = torch.zeros_like(weight.target)

    def norm(self) -> torch.Tensor:
        """L2 norm over all gradients that are there."""
        wide = [(w.target.grad, w.gradient()) for w in self._copies]
        if wide:
            torch._foreach_copy_([a for a, _ in wide], [b for _, b in wide])  # type: ignore[misc]
        for weight in self._weights:
            if not weight.is_copied:
                weight.target.grad = weight.gradient()
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
        return self._optimizer.state[weight.target]

    def refresh_copies(self) -> None:
        """Bring 16-bit copies up to date."""
        if self._copies:
            copies = [weight.source.detach() for weight in self._copies]
            torch._foreach_copy_(copies, [weight.target.detach() for weight in self._copies])


class FlatAdamW:
    """All weights of a kind end to end in one tensor, updated by one kernel.

    The kernel reads each gradient in the type it has and writes a weight and its 16-bit copy
    together, so that each byte moves once.
    """

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, steps: int) -> None:
        device = weights[0].target.device
        self._groups = [
            _Group(part, decay)
            for decayed, decay in _by_decay(weights, spec)
            for part in _by_copy(decayed)
        ]
        self._place = {id(w.target): (g, n) for g in self._groups for n, w in enumerate(g.weights)}
        self._step = torch.zeros((), device=device)
        done = torch.arange(steps + 2, dtype=torch.float64)
        corrections = torch.stack([1 - BETA_1**done, (1 - BETA_2**done).sqrt()], dim=1)
        self._corrections = corrections.float().to(device)

    def norm(self) -> torch.Tensor:
        """L2 norm over all gradients; a weight without one counts as zeros."""
        for group in self._groups:
            group.take_gradients()
        norms = [
            torch.linalg.vector_norm(group.gradients, dtype=torch.float32)
            for group in self._groups
        ]
        return torch.linalg.vector_norm(torch.stack(norms))

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Update every weight."""
        self._step.add_(1 - refused)
        correction = self._corrections.index_select(0, self._step.long()[None])[0]
        numbers = torch.stack([lr, divisor, refused, correction[0], correction[1]])
        for group in self._groups:
            kernels.adamw(
                group.weights_flat,
                group.first,
                group.second,
                group.gradients,
                group.copies,
                numbers,
                decay=group.decay,
                betas=(BETA_1, BETA_2),
                epsilon=EPSILON,
            )

    def state(self, weight: Weight) -> State:
        """The moments of a weight; all share the step."""
        group, number = self._place[id(weight.target)]
        first, second = (group.part(flat, number) for flat in (group.first, group.second))
        return {"exp_avg": first, "exp_avg_sq": second, "step": self._step}

    def refresh_copies(self) -> None:
        """Bring 16-bit copies up to date."""
        for group in self._groups:
            if group.copies is not None:
                group.copies.copy_(group.weights_flat)


class _Group:
    """Weights that share decay and type, moved into flat tensors of which they become views."""

    def __init__(self, weights: Sequence[Weight], decay: float) -> None:
        self.weights, self.decay = weights, decay
        sizes = [-(-w.target.numel() // ALIGNMENT) * ALIGNMENT for w in weights]
        self._starts = [0, *itertools.accumulate(sizes)]
        like = {"device": weights[0].target.device}
        total = self._starts[-1]
        self.weights_flat = torch.zeros(total, **like)
        self.first = torch.zeros(total, **like)
        self.second = torch.zeros(total, **like)
        self.gradients = torch.zeros(total, dtype=weights[0].source.dtype, **like)
        self.copies: torch.Tensor | None = None
        if weights[0].is_copied:
            self.copies = torch.zeros(total, dtype=weights[0].source.dtype, **like)
        self._gradient_views = [self.part(self.gradients, n) for n in range(len(weights))]
        for number, weight in enumerate(weights):
            _move(weight.target, self.part(self.weights_flat, number))
            if self.copies is not None:
                _move(weight.source, self.part(self.copies, number))

    def part(self, flat: torch.Tensor, number: int) -> torch.Tensor:
        """A weight's part of a flat tensor, in its shape."""
        target = self.weights[number].target
        start = self._starts[number]
        return flat[start : start + target.numel()].view(target.shape)

    def take_gradients(self) -> None:
        """Copy what autograd made into the flat tensor."""
        found = [
            (view, weight.source.grad)
            for view, weight in zip(self._gradient_views, self.weights, strict=True)
            if weight.source.grad is not None
        ]
        torch._foreach_copy_([view for view, _ in found], [gradient for _, gradient in found])


def _move(tensor: torch.Tensor, place: torch.Tensor) -> None:
    place.copy_(tensor.detach())
    tensor.data = place


def _by_decay(
    weights: Sequence[Weight], spec: OptimizerSpec
) -> list[tuple[list[Weight], float]]:
    """Decay is for matrices alone; biases and normalisation weights are vectors."""
    parts = (
        ([w for w in weights if w.source.dim() > 1], spec.weight_decay),
        ([w for w in weights if w.source.dim() <= 1], 0.0),
    )
    return [(part, decay) for part, decay in parts if part]


def _by_copy(weights: Sequence[Weight]) -> list[list[Weight]]:
    parts = [w for w in weights if w.is_copied], [w for w in weights if not w.is_copied]
    return [part for part in parts if part]
