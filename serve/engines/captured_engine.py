"""Engine with CUDA graphs: one graph for each batch shape, so the host makes one launch a batch."""

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
from serve.batching.policy import Limits
from serve.batching.rows import Logits, Padding, PendingBatch, Row, Tokenizer
from serve.engines.engine import ROW_HEAD, Head, Shape
from serve.engines.torch_engine import NAMES, load_classifier

DEVICE: Device = "cuda"
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
WIDTHS = (*range(8, 64, 8), *range(64, 512, 32), 512)
"""Rows and widths of captured shapes; a batch is padded to the next larger ones."""
MOST_TOKENS = 2**18
"""Most padded tokens of a captured batch; larger batches run without a graph."""
WARM_UPS = 1
"""Eager runs of a shape before its capture, which load its kernels; the first shape has one more,
in which libraries initialise themselves."""


@dataclass(slots=True)
class _Captured:
    """A captured graph and its output."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    """(rows, labels), or (rows, width, labels) if each token has its own; fp32."""


class CapturedEngine:
    """Runs batches padded to a captured shape, with weights in the engine's precision."""

    is_packed, ahead = False, 1

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, precision: Precision, head: Head = ROW_HEAD
    ) -> None:
        self.name = NAMES[precision]
        dtype = AUTOCAST.get(precision, torch.float32)
        self._device = torch.device(DEVICE, torch.cuda.current_device())
        self._model, self._head = load_classifier(folder, head).to(self._device, dtype), head
        self._padding = Padding.of(tokenizer)
        self._has_types = "token_type_ids" in tokenizer.input_names
        self._graphs: dict[Shape, _Captured] = {}
        # never resized: torch aborted the process when graphs were freed to enlarge the buffer
        self._inputs = torch.zeros(3 * MOST_TOKENS, dtype=torch.int64, device=self._device)
        self._pool: Any = None

    def prepare(self, lengths: Sequence[int], limits: Limits, longest: int) -> Sequence[Shape]:
        """Returns all shapes of batches within the limits; a first run captures its graph."""
        return shapes(limits.batch_rows, limits.batch_tokens, longest)

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns the logits."""
        return self.launch(rows)()

    @torch.inference_mode()
    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Starts a batch; the returned function waits for its logits."""
        shape = shape_of(len(rows), max(map(len, rows)))
        # each batch has its own pinned buffer, because the copy of the batch before may not have
        # ended; torch reuses pinned memory once the device has finished with it
        host = torch.empty((3, *shape), dtype=torch.int64, pin_memory=True)
        self._padding.fill(rows, host.numpy())
        if shape[0] * shape[1] <= MOST_TOKENS:
            captured = self._graphs.get(shape) or self._capture(shape)
            self._inputs[: host.numel()].copy_(host.view(-1), non_blocking=True)
            captured.graph.replay()
            logits = captured.logits
        else:
            logits = self._forward(host.to(self._device, non_blocking=True))
        output = torch.empty(logits.shape, pin_memory=True)
        output.copy_(logits, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def wait() -> Logits:
            done.synchronize()
            found: Logits = output.numpy()[: len(rows)]
            if self._head.is_per_token:
                of_tokens: Logits = found[host[1, : len(rows)].numpy().astype(bool)]
                return of_tokens
            return found.copy()

        return wait

    def _capture(self, shape: Shape) -> _Captured:
        count = 3 * shape[0] * shape[1]
        batch = self._inputs[:count].view(3, *shape)
        batch.zero_()  # values of an earlier batch may be no valid token ids at these positions
        batch[1] = 1
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS if self._graphs else WARM_UPS + 1):
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
    """Returns the smallest captured shape that holds `rows` rows of `width` tokens.

    Beyond the largest captured rows or width, the batch's own.
    """
    return _round_up(ROWS, rows), _round_up(WIDTHS, width)


def shapes(most_rows: int, most_tokens: int, longest: int) -> list[Shape]:
    """Returns every shape that batches within these limits need, the largest first.

    This includes the shapes of single rows that exceed a batch's tokens.

    Args:
        most_rows: Most rows of a batch.
        most_tokens: Most padded tokens of a batch.
        longest: Longest row in tokens.
    """
    widths = WIDTHS[: bisect.bisect_left(WIDTHS, longest) + 1]
    needed = {
        (rows, width)
        for (under, rows), (below, width) in itertools.product(_steps(ROWS), _steps(widths))
        if rows == 1 or (under < most_rows and (under + 1) * (below + 1) <= most_tokens)
    }
    return sorted(needed, key=np.prod, reverse=True)


def _steps(values: Sequence[int]) -> list[tuple[int, int]]:
    """Returns each value with its predecessor in front; the first one has 0."""
    return list(itertools.pairwise((0, *values)))


def _round_up(values: Sequence[int], value: int) -> int:
    index = bisect.bisect_left(values, value)
    return values[index] if index < len(values) else value
