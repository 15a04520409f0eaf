"""Trained weights in flat tensors, updated by one AdamW kernel; workers divide the update."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from jobs.spec.train import OptimizerSpec
from jobs.training.engine import kernels
from jobs.training.engine.fused import BETA_1, BETA_2, EPSILON
from jobs.training.engine.optimizer import State, decay_of
from jobs.training.model.weight import Weight, copy_gradients
from jobs.training.world import World

BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients in one exchange, as in DDP: large enough for the full speed of the links,
small enough that most exchanges overlap with the backward pass."""
SHARED_FROM_BYTES = 2 * BUCKET_BYTES
"""Bytes of gradients from which on workers divide the update; smaller weights are updated faster
than they would be fetched."""

all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""PyTorch's all-gather of a tensor; its name changes in version 2.13."""


class FlatAdamW:
    """AdamW for GPUs: one kernel updates all weights of one type, which are in one flat tensor.

    The kernel reads each gradient in its own type and writes a weight and its 16-bit copy together,
    so that each byte moves once. Workers divide the update of weights with 16-bit copies: each
    updates its part, and the others fetch the copies. `synchronize` gathers weights and moments.

    Source: Xu et al., 2020, "Automatic cross-replica sharding of weight update in data-parallel
    training".
    """

    def __init__(
        self, weights: Sequence[Weight], spec: OptimizerSpec, steps: int, world: World
    ) -> None:
        device = weights[0].target.device
        kinds = [w for w in weights if w.is_copied], [w for w in weights if not w.is_copied]
        self.groups = [FlatGroup(kind, spec, world) for kind in kinds if kind]
        self._place = {id(w.target): (g, n) for g in self.groups for n, w in enumerate(g.weights)}
        self._step = torch.zeros((), device=device)
        done = torch.arange(steps + 2, dtype=torch.float64)
        corrections = torch.stack([1 - BETA_1**done, (1 - BETA_2**done).sqrt()], dim=1)
        self._corrections = corrections.float().to(device)

    def take_gradients(self) -> None:
        """Copies the gradients of autograd into the flat tensors."""
        for group in self.groups:
            group.take(range(len(group.weights)))

    def norm(self) -> torch.Tensor:
        """Returns the L2 norm of the taken or exchanged gradients, the same on every worker."""
        squares = []
        for group in self.groups:
            square = kernels.sum_of_squares(group.received)
            if group.is_shared:
                dist.all_reduce(square)
            squares.append(square)
        return torch.stack(squares).sum().sqrt()

    def step(self, lr: torch.Tensor, divisor: torch.Tensor, refused: torch.Tensor) -> None:
        """Updates this worker's part of the weights."""
        self._step.add_(1 - refused)
        # a probe may outlast a short run
        row = self._step.long()[None].clamp(max=len(self._corrections) - 1)
        correction = self._corrections.index_select(0, row)[0]
        numbers = torch.stack([lr, divisor, refused, correction[0], correction[1]])
        for group in self.groups:
            group.update(numbers)

    def use(self, spec: OptimizerSpec) -> None:
        """Takes another weight decay."""
        for group in self.groups:
            group.use(spec)

    def state(self, weight: Weight) -> State:
        """Returns the moments of a weight; all weights share the step."""
        group, number = self._place[id(weight.target)]
        first, second = (group.part(flat, number) for flat in (group.first, group.second))
        return {"exp_avg": first, "exp_avg_sq": second, "step": self._step}

    def synchronize(self, *, with_moments: bool = True) -> None:
        """Gathers the weights, and the moments too, that each worker updated for the others."""
        for group in self.groups:
            moments = (group.first, group.second) if with_moments else ()
            if group.is_shared:
                for bucket in group.buckets:
                    for flat in (group.flat, *moments):
                        all_gather(flat[bucket.whole], flat[bucket.own])

    def refresh_copies(self) -> None:
        """Copies weights into their 16-bit copies."""
        for group in self.groups:
            if group.copies is not None:
                group.copies.copy_(group.flat)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive weights of a group whose gradients are exchanged together."""

    numbers: range
    """Indices of the weights in their group."""
    whole: slice
    """Range of the bucket in the flat tensors."""
    own: slice
    """Range that this worker updates."""


class FlatGroup:
    """Weights of one type in flat tensors; the parameters become views of them."""

    def __init__(self, weights: Sequence[Weight], spec: OptimizerSpec, world: World) -> None:
        self.weights = weights
        block = kernels.BLOCK
        device, low = weights[0].target.device, weights[0].source.dtype
        sizes = [-(-w.target.numel() // block) * block for w in weights]
        is_large = sum(sizes) * low.itemsize >= SHARED_FROM_BYTES
        self.is_shared = world.size > 1 and weights[0].is_copied and is_large
        parts = _partition(sizes, BUCKET_BYTES // low.itemsize)
        if self.is_shared:
            for numbers in parts:  # padded, so that each worker's part is a number of whole blocks
                held = sum(sizes[number] for number in numbers)
                sizes[numbers[-1]] += -held % (block * world.size)
        self.starts = [0, *itertools.accumulate(sizes)]
        self.buckets = [self._bucket(numbers, world) for numbers in parts]
        total = self.starts[-1]
        self.flat, self.first, self.second = (torch.zeros(total, device=device) for _ in range(3))
        self.gradients = torch.zeros(total, dtype=low, device=device)
        self.received = self.gradients
        """Summed gradients of this worker's part, bucket after bucket if the update is divided."""
        if self.is_shared:
            self.received = torch.zeros(total // world.size, dtype=low, device=device)
        self.copies: torch.Tensor | None = None
        if weights[0].is_copied:
            self.copies = torch.zeros(total, dtype=low, device=device)
        self._blocks = torch.tensor([size // block for size in sizes])
        self.rates = self._spread([weight.rate for weight in weights]).to(device)
        self.decays = torch.zeros_like(self.rates)
        self.use(spec)
        self._gradient_views = [self.part(self.gradients, n) for n in range(len(weights))]
        for number, weight in enumerate(weights):
            _move(weight.target, self.part(self.flat, number))
            if self.copies is not None:
                _move(weight.source, self.part(self.copies, number))

    def use(self, spec: OptimizerSpec) -> None:
        """Takes another weight decay, which captured steps read too."""
        self.decays.copy_(self._spread([decay_of(weight, spec) for weight in self.weights]))

    def _spread(self, values: Sequence[float]) -> torch.Tensor:
        """Returns the value of each weight for each of its blocks."""
        return torch.tensor(values).repeat_interleave(self._blocks)

    def part(self, flat: torch.Tensor, number: int) -> torch.Tensor:
        """Returns the view of a weight in a flat tensor, in the weight's shape."""
        target = self.weights[number].target
        start = self.starts[number]
        return flat[start : start + target.numel()].view(target.shape)

    def take(self, numbers: range) -> None:
        """Copies gradients into the flat tensor; the gradient of a weight without one is zero."""
        copy_gradients((self._gradient_views[n], self.weights[n].source.grad) for n in numbers)

    def received_of(self, bucket: Bucket) -> torch.Tensor:
        """Returns the tensor that receives the summed gradients of a bucket."""
        before = self.buckets[: self.buckets.index(bucket)]
        start = sum(one.own.stop - one.own.start for one in before)
        return self.received[start : start + bucket.own.stop - bucket.own.start]

    def update(self, numbers: torch.Tensor) -> None:
        """Runs AdamW on this worker's part; `numbers` are the scalars of `kernels.adamw`."""
        if not self.is_shared:
            self._update(slice(0, self.starts[-1]), self.received, numbers)
            return
        for bucket in self.buckets:
            self._update(bucket.own, self.received_of(bucket), numbers)

    def _update(self, place: slice, gradients: torch.Tensor, numbers: torch.Tensor) -> None:
        blocks = slice(place.start // kernels.BLOCK, place.stop // kernels.BLOCK)
        kernels.adamw(
            self.flat[place],
            self.first[place],
            self.second[place],
            gradients,
            None if self.copies is None else self.copies[place],
            numbers,
            self.decays[blocks],
            self.rates[blocks],
            betas=(BETA_1, BETA_2),
            epsilon=EPSILON,
        )

    def _bucket(self, numbers: range, world: World) -> Bucket:
        start, stop = self.starts[numbers.start], self.starts[numbers.stop]
        whole = slice(start, stop)
        if not self.is_shared:
            return Bucket(numbers, whole, whole)
        size = (stop - start) // world.size
        return Bucket(
            numbers, whole, slice(start + world.rank * size, start + (world.rank + 1) * size)
        )


def _partition(sizes: Sequence[int], most: int) -> list[range]:
    """Divides weights into buckets of at most `most` elements, from the last weight to the first.

    A larger weight has a bucket of its own.
    """
    parts, stop = [], len(sizes)
    for number in reversed(range(len(sizes))):
        held = sum(sizes[number:stop])
        if number == 0 or held + sizes[number - 1] > most:
            parts.append(range(number, stop))
            stop = number
    return parts


def _move(tensor: torch.Tensor, place: torch.Tensor) -> None:
    place.copy_(tensor.detach())
    tensor.data = place
