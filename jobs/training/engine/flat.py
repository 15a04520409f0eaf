"""Trained weights end to end: one AdamW kernel, gradients exchanged in a few large pieces."""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from jobs.spec.train import OptimizerSpec
from jobs.training.engine import kernels
from jobs.training.engine.adamw import BETA_1, BETA_2, EPSILON, State, decay_of
from jobs.training.model.weight import Weight

BUCKET_BYTES = 25 * 2**20
"""Gradients that workers exchange at once, as in DDP: large enough for the links' full speed, small
enough that most are under way while the backward pass still runs."""


class FlatAdamW:
    """AdamW for GPUs. Weights of one type lie in one tensor and are updated by one kernel.

    The kernel reads each gradient in the type it has and writes a weight and its 16-bit copy
    together, so that each byte moves once.
    """

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, steps: int) -> None:
        device = weights[0].target.device
        kinds = [w for w in weights if w.is_copied], [w for w in weights if not w.is_copied]
        self.groups = [_Group(kind, spec) for kind in kinds if kind]
        self._place = {id(w.target): (g, n) for g in self.groups for n, w in enumerate(g.weights)}
        self._step = torch.zeros((), device=device)
        done = torch.arange(steps + 2, dtype=torch.float64)
        corrections = torch.stack([1 - BETA_1**done, (1 - BETA_2**done).sqrt()], dim=1)
        self._corrections = corrections.float().to(device)

    def take_gradients(self) -> None:
        """Copy what autograd made into the flat tensors."""
        for group in self.groups:
            group.take(range(len(group.weights)))

    def norm(self) -> torch.Tensor:
        """L2 norm over the gradients that were taken or exchanged."""
        squares = [kernels.sum_of_squares(group.gradients) for group in self.groups]
        return torch.stack(squares).sum().sqrt()

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Update every weight."""
        self._step.add_(1 - refused)
        # a probe may outlast a short run
        row = self._step.long()[None].clamp(max=len(self._corrections) - 1)
        correction = self._corrections.index_select(0, row)[0]
        numbers = torch.stack([lr, divisor, refused, correction[0], correction[1]])
        for group in self.groups:
            kernels.adamw(
                group.flat,
                group.first,
                group.second,
                group.gradients,
                group.copies,
                numbers,
                group.decay,
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
        for group in self.groups:
            if group.copies is not None:
                group.copies.copy_(group.flat)


class Exchange:
    """Sums gradients over workers while the backward pass still runs.

    A bucket is sent when autograd has made its last gradient, in the same order on every worker;
    gradients go straight from autograd into the flat tensor that the optimizer reads. With
    `in_16_bits` all are summed in 16 bits, as most are made; embeddings' would otherwise be the
    largest and the last to arrive.
    """

    def __init__(
        self, optimizer: FlatAdamW, weights: Sequence[Weight], *, in_16_bits: bool
    ) -> None:
        order = {id(weight.target): index for index, weight in enumerate(weights)}
        buckets = [
            bucket
            for group in optimizer.groups
            for bucket in _buckets(group, narrow=in_16_bits and group.copies is None)
        ]
        # the backward pass ends with the weights that the forward pass begins with
        buckets.sort(key=lambda b: -min(order[id(b.group.weights[n].target)] for n in b.numbers))
        self._buckets = buckets
        self._missing: list[int] = []
        self._works: list[Any] = []
        self._is_armed = False
        for index, bucket in enumerate(buckets):
            for number in bucket.numbers:
                source = bucket.group.weights[number].source
                source.register_post_accumulate_grad_hook(self._arrival(index))  # type: ignore[no-untyped-call]

    def arm(self) -> None:
        """Exchange what the next backward pass makes."""
        self._missing = [len(bucket.numbers) for bucket in self._buckets]
        self._works = []
        self._is_armed = True

    def finish(self) -> None:
        """Send what never got a gradient too, and let the device wait for all sums."""
        self._missing = [0] * len(self._buckets)
        self._send_ready()
        for bucket, work in zip(self._buckets, self._works, strict=True):
            work.wait()
            bucket.widen()
        self._is_armed = False

    def _arrival(self, index: int) -> Any:
        # no garbage collection finds a cycle that leads through a hook: all weights would stay
        found = weakref.ref(self)

        def arrived(_: torch.Tensor) -> None:
            exchange = found()
            if exchange is not None and exchange._is_armed:
                exchange._missing[index] -= 1
                exchange._send_ready()

        return arrived

    def _send_ready(self) -> None:
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            bucket = self._buckets[len(self._works)]
            self._works.append(dist.all_reduce(bucket.take(), async_op=True))


class _Bucket:
    """Neighbours in a group, whose gradients are exchanged at once."""

    def __init__(self, group: "_Group", numbers: range, *, narrow: bool) -> None:
        self.group, self.numbers = group, numbers
        self._flat = group.gradients[group.starts[numbers.start] : group.starts[numbers.stop]]
        self._narrow = torch.zeros_like(self._flat, dtype=torch.bfloat16) if narrow else None

    def take(self) -> torch.Tensor:
        """Their gradients from autograd, end to end, in the type that is exchanged."""
        self.group.take(self.numbers)
        return self._flat if self._narrow is None else self._narrow.copy_(self._flat)

    def widen(self) -> None:
        """Bring what was exchanged back into the group's type."""
        if self._narrow is not None:
            self._flat.copy_(self._narrow)


class _Group:
    """Weights of one type, moved into flat tensors of which they become views."""

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec) -> None:
        self.weights = weights
        block = kernels.BLOCK
        sizes = [-(-w.target.numel() // block) * block for w in weights]
        self.starts = [0, *itertools.accumulate(sizes)]
        device, low = weights[0].target.device, weights[0].source.dtype
        total = self.starts[-1]
        self.flat, self.first, self.second = (torch.zeros(total, device=device) for _ in range(3))
        self.gradients = torch.zeros(total, dtype=low, device=device)
        self.copies: torch.Tensor | None = None
        if weights[0].is_copied:
            self.copies = torch.zeros(total, dtype=low, device=device)
        decays = [decay_of(weight, spec) for weight in weights]
        blocks = torch.tensor([size // block for size in sizes])
        self.decay = torch.tensor(decays).repeat_interleave(blocks).to(device)
        self._gradient_views = [self.part(self.gradients, n) for n in range(len(weights))]
        for number, weight in enumerate(weights):
            _move(weight.target, self.part(self.flat, number))
            if self.copies is not None:
                _move(weight.source, self.part(self.copies, number))

    def part(self, flat: torch.Tensor, number: int) -> torch.Tensor:
        """A weight's part of a flat tensor, in its shape."""
        target = self.weights[number].target
        start = self.starts[number]
        return flat[start : start + target.numel()].view(target.shape)

    def take(self, numbers: range) -> None:
        """Copy gradients of some weights into their place; a weight without one counts as zeros."""
        pairs = ((self._gradient_views[n], self.weights[n].source.grad) for n in numbers)
        found = [(view, gradient) for view, gradient in pairs if gradient is not None]
        with torch.no_grad():
            torch._foreach_copy_([view for view, _ in found], [given for _, given in found])


def _buckets(group: _Group, *, narrow: bool) -> list[_Bucket]:
    size = group.gradients.element_size()
    buckets, stop = [], len(group.weights)
    for number in reversed(range(len(group.weights))):
        held = (group.starts[stop] - group.starts[number]) * size
        if number == 0 or held + _bytes(group, number - 1) > BUCKET_BYTES:
            buckets.append(_Bucket(group, range(number, stop), narrow=narrow))
            stop = number
    return buckets


def _bytes(group: _Group, number: int) -> int:
    return (group.starts[number + 1] - group.starts[number]) * group.gradients.element_size()


def _move(tensor: torch.Tensor, place: torch.Tensor) -> None:
    place.copy_(tensor.detach())
    tensor.data = place
