"""The model on a GPU, with a CUDA graph for each shape of a batch: the host launches one thing."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.precision import AUTOCAST
from serve.batching.rows import Logits, Padding, PendingBatch, Row, Tokenizer
from serve.engines.engine import Shape
from serve.engines.torch_engine import NAMES, load_classifier

DEVICE: Device = "cuda"
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
WIDTHS = (*range(8, 64, 8), *range(64, 512, 32), 512)
"""Rows and padded tokens of captured batches; what lies between is filled up."""
MOST_TOKENS = 2**18
"""Of a batch, padding among them; more are run without a graph."""
WARM_UPS = 2
"""Eager runs of a shape before it is captured: libraries set themselves up."""


@dataclass(slots=True)
class _Captured:
    """A graph, where it reads its batch, and where it leaves logits."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    """(rows, labels), fp32."""


class CapturedEngine:
    """Weights in the precision asked for; batches are padded up to a shape that was captured."""

    is_packed = False

    def __init__(self, folder: Path, tokenizer: Tokenizer, precision: Precision) -> None:
        self.name = NAMES[precision]
        dtype = AUTOCAST.get(precision, torch.float32)
        self._device = torch.device(DEVICE, torch.cuda.current_device())
        self._model = load_classifier(folder).to(self._device, dtype)
        self._padding = Padding.of(tokenizer)
        self._has_types = "token_type_ids" in tokenizer.input_names
        self._graphs: dict[Shape, _Captured] = {}
        # of one size for good: torch aborted the process when graphs were dropped to make it larger
        self._inputs = torch.zeros(3 * MOST_TOKENS, dtype=torch.int64, device=self._device)
        self._pool: Any = None

    def run(self, rows: Sequence[Row]) -> Logits:
        """Logits as [rows, labels]."""
        return self.launch(rows)()

    @torch.inference_mode()
    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Start a batch; what is returned waits for its logits, [rows, labels]."""
        shape = shape_of(len(rows), max(map(len, rows)))
        # of its own for each batch, because the one before may still be on its way: torch hands
        # pinned memory out again once the device is done with it
        host = torch.empty((3, *shape), dtype=torch.int64, pin_memory=True)
        self._padding.fill(rows, host.numpy())
        if shape[0] * shape[1] <= MOST_TOKENS:
            captured = self._graphs.get(shape) or self._capture(shape)
            self._inputs[: host.numel()].copy_(host.view(-1), non_blocking=True)
            captured.graph.replay()
            logits = captured.logits
        else:
            logits = self._forward(host.to(self._device, non_blocking=True))
        found = torch.empty(logits.shape, pin_memory=True)
        found.copy_(logits, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def land() -> Logits:
            done.synchronize()
            return found.numpy()[: len(rows)].copy()

        return land

    def _capture(self, shape: Shape) -> _Captured:
        count = 3 * shape[0] * shape[1]
        batch = self._inputs[:count].view(3, *shape)
        batch.zero_()  # what an earlier batch left there would not be ids of this one's shape
        batch[1] = 1
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._forward(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._forward(batch)
        self._pool = self._pool or graph.pool()
        self._graphs[shape] = _Captured(graph, logits)
        return self._graphs[shape]

    def _forward(self, batch: torch.Tensor) -> torch.Tensor:
        ids, mask, types = batch
        extra = {"token_type_ids": types} if self._has_types else {}
        return self._model(input_ids=ids, attention_mask=mask, **extra).logits.float()  # type: ignore[no-any-return]


def shape_of(rows: int, width: int) -> Shape:
    """The captured shape that takes so many rows of so many tokens; their own beyond the last."""
    return _up(ROWS, rows), _up(WIDTHS, width)


def shapes(most_rows: int, most_tokens: int, longest: int) -> list[Shape]:
    """Every shape that batches within these limits may need, the largest first.

    A row that alone has more tokens than a batch may is one too.
    """
    widths = WIDTHS[: bisect.bisect_left(WIDTHS, longest) + 1]
    found = {
        (rows, width)
        for (under, rows), (below, width) in itertools.product(_steps(ROWS), _steps(widths))
        if rows == 1 or (under < most_rows and (under + 1) * (below + 1) <= most_tokens)
    }
    return sorted(found, key=np.prod, reverse=True)


def _steps(values: Sequence[int]) -> list[tuple[int, int]]:
    """Each value behind the one before it."""
    return list(itertools.pairwise((0, *values)))


def _up(values: Sequence[int], value: int) -> int:
    index = bisect.bisect_left(values, value)
    return values[index] if index < len(values) else value
