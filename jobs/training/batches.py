"""Which samples each worker sees: a pure function of seed, step, world size and micro batch.

The order of samples over the global batches depends on the seed and the epoch alone, so every
placement learns from the same sequence.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows for one forward pass of one worker; `weights` is 0 for filler rows, else 1."""

    indices: Indices
    weights: NDArray[np.float32]


def steps_per_epoch(rows: int, global_batch_size: int) -> int:
    """Optimizer steps in one pass; the last one may be smaller."""
    return math.ceil(rows / global_batch_size)


def total_steps(rows: int, global_batch_size: int, epochs: float) -> int:
    """Optimizer steps of a run, at least 1."""
    return max(1, round(steps_per_epoch(rows, global_batch_size) * epochs))


def global_batch(rows: int, global_batch_size: int, seed: int, step: int) -> Indices:
    """Row numbers of 0-based optimizer step `step`, in an order shuffled for each epoch."""
    epoch, position = divmod(step, steps_per_epoch(rows, global_batch_size))
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    start = position * global_batch_size
    return order[start : start + global_batch_size]


def micro_batches(
    indices: Indices, *, rank: int, world_size: int, micro_batch_size: int, global_batch_size: int
) -> Iterator[MicroBatch]:
    """The forward passes of one worker for one global batch.

    Every worker makes the same number of passes, as collective communication needs; where rows run
    out, one row stands in with weight 0.
    """
    for first in range(0, global_batch_size, world_size * micro_batch_size):
        if first >= len(indices):
            return
        start = first + rank * micro_batch_size
        own = indices[start : start + micro_batch_size]
        if len(own):
            yield MicroBatch(own, np.ones(len(own), np.float32))
        else:
            yield MicroBatch(indices[:1], np.zeros(1, np.float32))
