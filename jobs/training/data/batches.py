"""Which rows each step uses: a pure function of seed, epoch, batch size and row lengths.

Batches do not depend on the number of workers or on the micro batch, so that every placement
trains on the same batches in the same order.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

FILLER = -1
"""Index that fills up an epoch's last batch."""
GROUPED_BATCHES = 50
"""Batches whose rows are sorted by length together, so that each batch has rows of similar length.
"""
MAX_WIDTHS = 12
"""Most padded widths: each needs a captured graph, and further ones save little padding."""
MOST_CANDIDATES = 1024
"""Most lengths among which widths are chosen; the time and memory of the choice grow with its
square."""
WIDTH_MULTIPLE = 4
"""Tensor cores and attention kernels are fastest at sequence lengths in multiples of this."""


def steps_per_epoch(rows: int, global_batch_size: int) -> int:
    """Returns the optimizer steps of one epoch; the last batch may be smaller."""
    return math.ceil(rows / global_batch_size)


def total_steps(rows: int, global_batch_size: int, epochs: float) -> int:
    """Returns the optimizer steps of a run, at least 1."""
    return max(1, round(steps_per_epoch(rows, global_batch_size) * epochs))


def epoch_batches(lengths: Indices, global_batch_size: int, seed: int, epoch: int) -> Indices:
    """Returns the rows of an epoch's batches, (steps, global_batch_size), filled up with FILLER.

    Rows are shuffled, then sorted by length within pools of GROUPED_BATCHES batches, so that
    batches need little padding; the order of the batches is shuffled again.
    """
    rows = len(lengths)
    draw = np.random.default_rng([seed, epoch])
    order = draw.permutation(rows)
    pool = np.arange(rows) // (GROUPED_BATCHES * global_batch_size)
    order = order[np.lexsort((-lengths[order], pool))]
    steps = steps_per_epoch(rows, global_batch_size)
    batches = np.full(steps * global_batch_size, FILLER, dtype=np.int64)
    batches[:rows] = order
    shuffled: Indices = draw.permutation(batches.reshape(steps, global_batch_size))
    return shuffled


def own_share(batches: Indices, *, rank: int, world_size: int, micro_batch_size: int) -> Indices:
    """Returns one worker's rows of each batch, (steps, passes, micro_batch_size).

    Every worker has the same number of passes, because collective operations need all workers.
    """
    steps = len(batches)
    share: Indices = batches.reshape(steps, -1, world_size, micro_batch_size)[:, :, rank]
    return share


def filled(rows: Indices, repeated: Indices) -> Indices:
    """Returns `rows` with a row of the same batch, `repeated`, in place of FILLER.

    A row of another batch may exceed the batch's width, and some models fail on a row without its
    last token.
    """
    found: Indices = np.where(rows == FILLER, repeated, rows)
    return found


def batch_lengths(batches: Indices, lengths: Indices) -> Indices:
    """Returns the longest row of each batch in tokens, (steps,)."""
    longest = np.where(batches == FILLER, 0, lengths[batches]).max(axis=1)
    return np.asarray(longest, dtype=np.int64)


def choose_widths(longest: Indices, max_length: int) -> tuple[int, ...]:
    """Returns at most MAX_WIDTHS padded widths that minimise the padding of batches.

    `longest` has the longest row of each batch. The last width holds `max_length` tokens. Dynamic
    programming over the distinct lengths, rounded up to WIDTH_MULTIPLE, or to a larger multiple if
    there are more than MOST_CANDIDATES.
    """
    values, counts = _candidates(longest, max_length)
    sums = np.concatenate([[0], np.cumsum(counts)])
    # cost[j]: fewest padded tokens of the first j values if the j-th is a width
    cost = sums[1:] * values
    chosen: list[list[int]] = [[int(v)] for v in values]
    for _ in range(MAX_WIDTHS - 1):
        options = cost[None, :] + (sums[1:][:, None] - sums[1:][None, :]) * values[:, None]
        options[np.triu_indices(len(values))] = np.iinfo(np.int64).max
        best = options.argmin(axis=1)
        better = options[np.arange(len(values)), best] < cost
        chosen = [
            [*chosen[best[j]], int(values[j])] if better[j] else chosen[j]
            for j in range(len(values))
        ]
        cost = np.where(better, options[np.arange(len(values)), best], cost)
    return tuple(chosen[-1])


def _candidates(longest: Indices, max_length: int) -> tuple[Indices, Indices]:
    """Returns the distinct lengths that a width may have, sorted, and the batches of each."""
    multiple = WIDTH_MULTIPLE
    while True:
        rounded = np.minimum(-(-longest // multiple) * multiple, max_length)
        values, counts = np.unique(np.append(rounded, max_length), return_counts=True)
        if len(values) <= MOST_CANDIDATES:
            return values, counts
        multiple *= 2


def fit_widths(longest: Indices, widths: Sequence[int]) -> Indices:
    """Returns the smallest width that holds each batch, (steps,)."""
    fitting: Indices = np.asarray(widths, np.int64)[np.searchsorted(widths, longest)]
    return fitting
