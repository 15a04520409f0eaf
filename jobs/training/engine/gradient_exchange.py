"""Communication between workers that overlaps with the backward and forward pass of a step."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from jobs.training.engine import sparse_embedding
from jobs.training.engine.flat_params import Bucket, FlatAdamW, FlatGroup, all_gather
from jobs.training.engine.sparse_embedding import UsedEmbeddingRows
from jobs.training.model.weight import Weight

_reduce_scatter: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)


class GradientExchange:
    """Sums gradients over workers while the backward pass still runs.

    A bucket is sent as soon as autograd has made its last gradient, in the same order on every
    worker. Gradients are copied from autograd into the flat tensor that the optimizer reads. In a
    divided bucket, a worker receives the sum of its own part only; of an embedding, only the rows
    that the step uses are summed. With `in_16_bits`, fp32 gradients are summed in bf16 as well.
    """

    def __init__(
        self, optimizer: FlatAdamW, weights: Sequence[Weight], *, in_16_bits: bool
    ) -> None:
        self._buckets = [
            _BucketExchange(group, bucket, narrow=in_16_bits and group.copies is None)
            for group, bucket in _in_forward_order(optimizer, weights)[::-1]
        ]
        self._pending_gradients: list[int] = []
        self._works: list[Any] = []
        self._is_enabled = False
        for index, bucket in enumerate(self._buckets):
            for source in bucket.sources:
                source.register_post_accumulate_grad_hook(self._on_gradient(index))  # type: ignore[no-untyped-call]

    def attach(self, model: torch.nn.Module, passes: int) -> None:
        """Registers hooks that record which embedding rows the passes of a step use."""
        found = sparse_embedding.of_embeddings(model, passes)
        for bucket in self._buckets:
            if len(bucket.sources) == 1:
                bucket.rows = found.get(id(bucket.sources[0]))

    def begin(self) -> None:
        """Starts a step."""
        for bucket in self._buckets:
            if bucket.rows:
                bucket.rows.begin()

    def enable(self) -> None:
        """Lets the next backward pass, which is the last of the step, exchange its gradients."""
        self._pending_gradients = [len(bucket.sources) for bucket in self._buckets]
        self._works = []
        self._is_enabled = True
        for bucket in self._buckets:
            if bucket.rows:
                bucket.rows.enable()

    def finish(self) -> None:
        """Sends the buckets without gradients as well, and lets the device wait for all sums."""
        self._pending_gradients = [0] * len(self._buckets)
        self._send_ready()
        for bucket, work in zip(self._buckets, self._works, strict=True):
            work.wait()
            bucket.receive()
        self._is_enabled = False

    def _on_gradient(self, index: int) -> Any:
        # weak, because the garbage collector does not see cycles through hooks: all weights would
        # stay in memory
        found = weakref.ref(self)

        def on_gradient(_: torch.Tensor) -> None:
            exchange = found()
            if exchange is not None and exchange._is_enabled:
                exchange._pending_gradients[index] -= 1
                exchange._send_ready()

        return on_gradient

    def _send_ready(self) -> None:
        while (
            len(self._works) < len(self._buckets) and not self._pending_gradients[len(self._works)]
        ):
            self._works.append(self._buckets[len(self._works)].send())


class _BucketExchange:
    """The exchange of one bucket's gradients."""

    def __init__(self, group: FlatGroup, bucket: Bucket, *, narrow: bool) -> None:
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
        """Copies the gradients from autograd and starts to sum them; returns the pending work."""
        self._group.take(self._numbers)
        if self._own is not None:
            return _reduce_scatter(self._own, self._flat, async_op=True)
        if self.rows and not self.rows.covers(self._table):
            self.rows.end()
            self.rows = None
        self._ids = self.rows.ids_of_all_workers() if self.rows else None
        given = self._flat if self._ids is None else self._table.index_select(0, self._ids)
        self._sent = given.to(self._sent_type)
        return dist.all_reduce(self._sent, async_op=True)

    def receive(self) -> None:
        """Copies the sums into the flat tensor."""
        if self.rows:
            self.rows.end()
        if self._ids is not None:  # an id that occurs twice has the same sum twice
            self._table.index_copy_(0, self._ids, self._sent.to(self._flat.dtype))
        elif self._sent is not self._flat:
            self._flat.copy_(self._sent)
        self._sent, self._ids = self._flat, None


class WeightGather:
    """Gathers the 16-bit copies that other workers updated, while the forward pass runs.

    Each module waits only for its own weights: every repeated layer, and the other modules that
    are called beside the layers. If a module's hook turns out not to run, its weights are awaited
    before the forward pass.
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
            module.register_forward_pre_hook(self._on_call(count))

    def start(self) -> None:
        """Starts to gather all weights, in the order in which the forward pass uses them."""
        self._called = set()
        self._awaited = 0
        self._works = [all_gather(whole, own, async_op=True) for whole, own in self._pieces]
        self._await(self._at_once)

    def finish(self) -> None:
        """Ends a forward pass; from then on, awaits weights of uncalled modules at its start."""
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

    def _on_call(self, count: int) -> Any:
        found = weakref.ref(self)

        def on_call(module: torch.nn.Module, _: Any) -> None:
            refresh = found()
            if refresh is not None and refresh._works:
                refresh._called.add(module)
                refresh._await(count)

        return on_call


def _needs(
    piece_of: dict[int, int], model: torch.nn.Module, layers: Sequence[torch.nn.Module]
) -> dict[torch.nn.Module, int]:
    """Returns the number of pieces that must have arrived before each module is called.

    The modules are the outermost ones that contain none of `layers`, because they may run their
    children without the children's hooks.
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
) -> list[tuple[FlatGroup, Bucket]]:
    """Returns all buckets, in the order in which the forward pass first uses them."""
    order = {id(weight.target): index for index, weight in enumerate(weights)}

    def first_use(found: tuple[FlatGroup, Bucket]) -> int:
        group, bucket = found
        return min(order[id(group.weights[number].target)] for number in bucket.numbers)

    return sorted(((g, b) for g in optimizer.groups for b in g.buckets), key=first_use)
