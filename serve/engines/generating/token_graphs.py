"""Captured forward passes of a language model, of a step of many rows or of pieces of prompts."""

import bisect
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jobs.training.engine.capture import HostConstants, compiled
from jobs.training.model.parallel import repeated_layers
from serve.engines.generating import cache_attention
from serve.engines.generating.adapters import AdapterSlots
from serve.engines.generating.cache_attention import CachedTokens, LayerShape

STEP_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of captured steps; a step has the next larger number."""
READ_TOKENS = (64, 256, 1024)
"""Tokens of captured readings; a reading has the next larger number."""
READ_ROWS = 16
"""Most prompts of a reading."""
UNUSED = READ_TOKENS[-1]
"""Places at the start of the cache that take what rows without a text write."""
WARM_UPS = 2
"""Eager runs before a capture, in which libraries initialise themselves."""


@dataclass(slots=True)
class Inputs:
    """What a graph reads: numbers of 64 bits and of 32, as in `CachedTokens`, on the device."""

    ids: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    slots: torch.Tensor
    """Of the adapter of each token."""
    last: torch.Tensor
    """Tokens whose logits are asked for."""
    ends: torch.Tensor
    starts: torch.Tensor
    used: torch.Tensor
    live: torch.Tensor
    """1 for each row of a step that has a text, (rows,)."""
    is_stale: bool = True
    """Whether the host has to write them before the next run."""

    @classmethod
    def of(cls, tokens: int, rows: int, asked: int, device: torch.device) -> "Inputs":
        """Returns inputs full of zeros."""
        wide, narrow = (
            [torch.zeros(size, dtype=dtype, device=device) for size in sizes]
            for dtype, sizes in (
                (torch.int64, (tokens, tokens, tokens, tokens, asked, rows)),
                (torch.int32, (rows + 1, rows + 1, rows)),
            )
        )
        ids, positions, places, slots, last, live = wide
        ends, starts, used = narrow
        return cls(ids, positions, places, slots, last, ends, starts, used, live)

    def fill(self, **values: Sequence[int]) -> None:
        """Writes numbers; the device does it in its own order."""
        for name, given in values.items():
            target: torch.Tensor = getattr(self, name)
            host = torch.tensor(given, dtype=target.dtype)
            if target.is_cuda:  # its memory is not used again before the device has read it
                host = host.pin_memory()
            target[: len(given)].copy_(host, non_blocking=True)


@dataclass(slots=True)
class Graph:
    """A forward pass, what it reads, and the logits that it writes."""

    inputs: Inputs
    run: Callable[[], None]
    logits: torch.Tensor


class TokenGraphs:
    """Graphs of a model whose rows have places of their own in the cache of each layer."""

    def __init__(
        self,
        model: Any,
        shapes: dict[int, LayerShape],
        room: int,
        *,
        captures: bool,
        most: int,
        adapters: AdapterSlots | None = None,
    ) -> None:
        """Args: a causal model that attends by `cache_attention`, and its layers' shapes.

        `room` is the number of tokens that the cache holds behind the unused places, `most` that
        of a row. With `captures`, graphs are captured; else the same runs eagerly. `adapters` are
        those of the model's layers.
        """
        self._model, self._captures, self._most, self._adapters = model, captures, most, adapters
        self._device: torch.device = model.device
        self._takes = inspect.signature(model.forward).parameters
        self.caches = {
            index: (self._cache(shape, room), self._cache(shape, room))
            for index, shape in shapes.items()
        }
        """Keys and values by the layer's index, (places, heads, size) each."""
        self.step_inputs = Inputs.of(STEP_ROWS[-1], STEP_ROWS[-1], STEP_ROWS[-1], self._device)
        """Shared by steps of any width."""
        self.step_inputs.fill(ends=range(STEP_ROWS[-1] + 1))
        self._steps: dict[int, Graph] = {}
        self._reads: dict[int, Graph] = {}
        self._pool: Any = None
        self._logits: torch.Tensor | None = None
        """Of all steps, where no graph puts anything else: graphs share their memory."""

    def _cache(self, shape: LayerShape, room: int) -> torch.Tensor:
        size = (UNUSED + room, shape.heads, shape.size)
        return torch.zeros(size, dtype=shape.dtype, device=self._device)

    def warm(self, rows: int) -> None:
        """Captures the graphs of up to so many rows before they are needed."""
        for tokens in READ_TOKENS[::-1]:
            self.reading(tokens)
        for count in STEP_ROWS[bisect.bisect_left(STEP_ROWS, rows) :: -1]:
            self.step(count)

    def step(self, rows: int) -> Graph:
        """Returns the graph of a step of at least so many rows; the first call captures it."""
        width = STEP_ROWS[bisect.bisect_left(STEP_ROWS, rows)]
        if width not in self._steps:
            inputs = self.step_inputs
            self._steps[width] = self._made(inputs, lambda: self._step(inputs, width))
        return self._steps[width]

    def _step(self, inputs: Inputs, width: int) -> torch.Tensor:
        first = slice(width)
        tokens = CachedTokens(
            self.caches,
            places=inputs.places[first],
            ends=inputs.ends[: width + 1],
            starts=inputs.starts[: width + 1],
            used=inputs.used[first],
            most=1,
            longest=self._most,
        )
        logits = self._forward(inputs, first, tokens, None)
        for counted in (inputs.positions, inputs.places, inputs.used):
            counted[first].add_(inputs.live[first])
        if self._logits is None:  # not while a graph is captured, because warm-ups come first
            self._logits = logits.new_zeros(STEP_ROWS[-1], logits.shape[1])
        return self._logits[first].copy_(logits)

    def reading(self, tokens: int) -> Graph:
        """Returns the graph that reads at least so many tokens; the first call captures it."""
        count = READ_TOKENS[bisect.bisect_left(READ_TOKENS, tokens)]
        if count not in self._reads:
            inputs = Inputs.of(count, READ_ROWS + 1, READ_ROWS, self._device)
            self._reads[count] = self._made(inputs, lambda: self._read(inputs))
        return self._reads[count]

    def _read(self, inputs: Inputs) -> torch.Tensor:
        tokens = CachedTokens(
            self.caches,
            places=inputs.places,
            ends=inputs.ends,
            starts=inputs.starts,
            used=inputs.used,
            most=len(inputs.ids),
            longest=self._most,
        )
        return self._forward(inputs, slice(None), tokens, inputs.last)

    def _forward(
        self, inputs: Inputs, own: slice, tokens: CachedTokens, last: torch.Tensor | None
    ) -> torch.Tensor:
        """Returns the logits of `last` tokens, or of all, in fp32; `own` are the inputs' tokens."""
        if self._adapters is not None:
            self._adapters.select(inputs.slots[own][None])
        given: dict[str, Any] = {cache_attention.ARGUMENT: tokens, "use_cache": False}
        is_chosen = last is not None and "logits_to_keep" in self._takes
        if is_chosen:
            given["logits_to_keep"] = last
        found: torch.Tensor = self._model(
            input_ids=inputs.ids[own][None], position_ids=inputs.positions[own][None], **given
        ).logits[0]
        return (found if is_chosen or last is None else found[last]).float()

    def _made(self, inputs: Inputs, forward: Callable[[], torch.Tensor]) -> Graph:
        """Returns a graph of a forward pass, or what runs it eagerly."""
        made = Graph(inputs, lambda: None, torch.empty(0))
        if not self._captures:

            def eager() -> None:
                made.logits = forward()

            made.run = eager
            return made
        inputs.is_stale = True  # warm-ups and the capture write into the cache and the inputs
        inputs.live.zero_()
        inputs.places.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with (
            HostConstants(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            made.logits = forward()
        self._pool = self._pool or graph.pool()
        made.run = graph.replay
        return made


def compile_layers(model: Any) -> None:
    """Compiles the model's repeated layers, and its output layer."""
    for layer in _compilable(model):
        layer.forward = compiled(layer.forward, dynamic=True, tunes=True)


def uncompile_layers(model: Any) -> None:
    """Undoes `compile_layers`, if the layers are compiled."""
    for layer in _compilable(model):
        vars(layer).pop("forward", None)


def _compilable(model: Any) -> list[torch.nn.Module]:
    return [*repeated_layers(model), model.get_output_embeddings()]
