"""What workers send each other in a step, while the backward and the forward pass run."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from jobs.training.engine import sparse_embedding
from jobs.training.engine.flat_params import Bucket, FlatAdamW, Group, all_gather
from jobs.training.engine.sparse_embedding import UsedEmbeddingRows
from jobs.training.model.weight import Weight

_reduce_scatter: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


class Exchange:
    """Sums gradients over workers while the backward pass still runs.

    A bucket is sent when autograd has made its last gradient, in the same order on every worker;
    gradients go straight from autograd into the flat tensor that the optimizer reads. Of a shared
    bucket a worker gets the sum of its own part alone; of an embedding, only the rows that a step
    uses are summed. With `in_16_bits` all are summed in 16 bits, as most are made.
    """

    def __init__(
        self, optimizer: FlatAdamW, weights: Sequence[Weight], *, in_16_bits: bool
    ) -> None:
        self._buckets = [
            _Outgoing(group, bucket, narrow=in_16_bits and group.copies is None)
            for group, bucket in _in_forward_order(optimizer, weights)[::-1]
        ]
        self._missing: list[int] = []
        self._works: list[Any] = []
        self._is_armed = False
        for index, bucket in enumerate(self._buckets):
            for source in bucket.sources:
                source.register_post_accumulate_grad_hook(self._arrival(index))  # type: ignore[no-untyped-call]

    def follow(self, model: torch.nn.Module, passes: int) -> None:
        """See which rows of embeddings the passes of a step use."""
        found = sparse_embedding.of_embeddings(model, passes)
        for bucket in self._buckets:
            if len(bucket.sources) == 1:
                bucket.rows = found.get(id(bucket.sources[0]))

    def begin(self) -> None:
        """A step begins."""
        for bucket in self._buckets:
            if bucket.rows:
                bucket.rows.begin()

    def arm(self) -> None:
        """Exchange what the next backward pass makes."""
        self._missing = [len(bucket.sources) for bucket in self._buckets]
        self._works = []
        self._is_armed = True
        for bucket in self._buckets:
            if bucket.rows:
                bucket.rows.arm()

    def finish(self) -> None:
        """Send what never got a gradient too, and let the device wait for all sums."""
        self._missing = [0] * len(self._buckets)
        self._send_ready()
        for bucket, work in zip(self._buckets, self._works, strict=True):
            work.wait()
            bucket.receive()
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
            self._works.append(self._buckets[len(self._works)].send())


class _Outgoing:
    """A bucket's gradients on their way."""

    def __init__(self, group: Group, bucket: Bucket, *, narrow: bool) -> None:
        self.sources = [group.weights[number].source for number in bucket.numbers]
        self.rows: UsedEmbeddingRows | None = None
        self._group, self._numbers = group, bucket.numbers
        self._flat = group.gradients[bucket.whole]
        self._table = group.part(group.gradients, bucket.numbers[0])
        self._sent_type = torch.bfloat16 if narrow else self._flat.dtype
        self._own = group.received_of(bucket) if group.is_shared else None
        self._ids: torch.Tensor | None = None
        self._sent = self._flat

    def send(self) -> Any:
        """Take them from autograd, end to end, and begin to sum them."""
        self._group.take(self._numbers)
        if self._own is not None:
            return _reduce_scatter(self._own, self._flat, async_op=True)
        if self.rows and not self.rows.explain(self._table):
            self.rows.end()
            self.rows = None
        self._ids = self.rows.everyones() if self.rows else None
        given = self._flat if self._ids is None else self._table.index_select(0, self._ids)
        self._sent = given.to(self._sent_type)
        return dist.all_reduce(self._sent, async_op=True)

    def receive(self) -> None:
        """Bring what was summed into its place."""
        if self.rows:
            self.rows.end()
        if self._ids is not None:  # where an id stands twice, so does its sum
            self._table.index_copy_(0, self._ids, self._sent.to(self._flat.dtype))
        elif self._sent is not self._flat:
            self._flat.copy_(self._sent)
        self._sent, self._ids = self._flat, None


class Refresh:
    """Fetches the 16-bit copies that other workers updated, while the forward pass runs.

    A module waits for its own weights alone: a layer of the repeated ones, or what else is called
    beside them. Weights whose module is found not to be called are waited for at the start.
    """

    def __init__(
        self,
        optimizer: FlatAdamW,
        weights: Sequence[Weight],
        model: torch.nn.Module,
        layers: Sequence[torch.nn.Module],
    ) -> None:
        self._pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._works: list[Any] = []
        self._awaited = 0
        self._at_once = 0
        piece_of = {}
        for group, bucket in _in_forward_order(optimizer, weights):
            if group.is_shared and group.copies is not None:
                self._pieces.append((group.copies[bucket.whole], group.copies[bucket.own]))
                for number in bucket.numbers:
                    piece_of[id(group.weights[number].source)] = len(self._pieces)
        self._needs = _needs(piece_of, model, layers)
        self._called: set[torch.nn.Module] = set()
        for module, count in self._needs.items():
            module.register_forward_pre_hook(self._call(count))

    def start(self) -> None:
        """Fetch everything, in the order in which the forward pass needs it."""
        self._called = set()
        self._awaited = 0
        self._works = [all_gather(whole, own, async_op=True) for whole, own in self._pieces]
        self._await(self._at_once)

    def finish(self) -> None:
        """After the forward pass: what it did not wait for must be waited for at once."""
        if not self._works:
            return
        missed = [count for module, count in self._needs.items() if module not in self._called]
        self._at_once = max([self._at_once, *missed])
        self._await(len(self._works))
        self._works = []

    def _await(self, count: int) -> None:
        for work in self._works[self._awaited : count]:
            work.wait()
        self._awaited = max(self._awaited, count)

    def _call(self, count: int) -> Any:
        found = weakref.ref(self)

        def called(module: torch.nn.Module, _: Any) -> None:
            refresh = found()
            if refresh is not None and refresh._works:
                refresh._called.add(module)
                refresh._await(count)

        return called


def _needs(
    piece_of: dict[int, int], model: torch.nn.Module, layers: Sequence[torch.nn.Module]
) -> dict[torch.nn.Module, int]:
    """For each module that is waited in, how many pieces must be there when it is called.

    The outermost modules that hold no layer of `layers`: those call what is in them in their own
    ways, which need not go through the hooks of the inner ones.
    """
    above = {module for module in model.modules() if set(module.modules()) & set(layers)}
    above -= set(layers)
    needs: dict[torch.nn.Module, int] = {}
    for module in above | {model}:
        for child in module.children():
            pieces = [piece_of.get(id(weight), 0) for weight in child.parameters()]
            if child not in above and max(pieces, default=0):
                needs[child] = max(pieces)
    return needs


def _in_forward_order(
    optimizer: FlatAdamW, weights: Sequence[Weight]
) -> list[tuple[Group, Bucket]]:
    """All buckets, in the order in which the forward pass begins with them."""
    order = {id(weight.target): index for index, weight in enumerate(weights)}

    def first_use(found: tuple[Group, Bucket]) -> int:
        group, bucket = found
        return min(order[id(group.weights[number].target)] for number in bucket.numbers)

    return sorted(((g, b) for g in optimizer.groups for b in g.buckets), key=first_use)
