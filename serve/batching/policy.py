"""Forms batches from the lengths of waiting rows. Pure functions."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.training.config import Device

BLOCK_BATCHES: dict[Device, float] = {"cpu": 2.5, "cuda": 8.0}
"""Largest block, in full batches. A block is the part of the queue that is sorted by length at
once: in a larger one the rows of a batch are more alike in length, but later requests wait longer.
It is smaller on a CPU, where a batch takes tens of milliseconds."""
LEFTOVER = 1.25
"""A packed batch may exceed its tokens by this factor if that empties the queue: a few remaining
rows would wait for a further batch."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a batch and of the queue."""

    batch_tokens: int = 512
    """Most padded tokens of a batch; a longer row is a batch of its own."""
    batch_rows: int = 64
    queue_tokens: int = 262_144
    """Most tokens in the queue."""
    idle_wait_s: float = 0.0
    """Time that an idle engine waits for further requests before it starts a batch."""
    block_batches: float = BLOCK_BATCHES["cuda"]
    """Largest block, in full batches; see `BLOCK_BATCHES`."""
    is_packed: bool = False
    """True if the engine computes no padding; its rows are then not sorted by length."""


def form_batches(lengths: Sequence[int], limits: Limits) -> list[list[int]]:
    """Returns the next batches, as positions in the queue.

    The batches cover the oldest rows up to one block. Rows that arrive later are in the next block,
    so a row waits for at most one block. Within a block, rows are sorted by length, distributed
    over as few batches as possible, and the batch with the oldest row is first. For an engine
    that packs rows there is one batch with the oldest rows. Measured in benchmarks/HISTORY.md.

    Args:
        lengths: Tokens of each row, in order of arrival.
        limits: Limits of a batch.
    """
    if limits.is_packed:
        is_all = sum(lengths) <= LEFTOVER * limits.batch_tokens
        fitting = len(lengths) if is_all else _count_within(lengths, limits.batch_tokens)
        return [list(range(min(fitting, limits.batch_rows)))]
    most = limits.block_batches * limits.batch_tokens
    order = sorted(range(_count_within(lengths, most)), key=lengths.__getitem__)
    tokens = _smallest_budget([lengths[index] for index in order], limits)
    batches: list[list[int]] = []
    for index in order:
        # in ascending order the newest row is the widest
        rows = len(batches[-1]) + 1 if batches else 0
        if rows and rows <= limits.batch_rows and rows * lengths[index] <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return sorted(batches, key=min)


def fits_one_batch(lengths: Sequence[int], limits: Limits) -> bool:
    """Returns True if all rows fit into one batch."""
    batches = form_batches(lengths, limits)
    return len(batches) == 1 and len(batches[0]) == len(lengths)


def _count_within(lengths: Sequence[int], most: float) -> int:
    """Returns how many of the first rows have at most `most` tokens together; at least one."""
    count = bisect.bisect_right(list(itertools.accumulate(lengths)), most)
    return max(1, count)


def _smallest_budget(ascending: Sequence[int], limits: Limits) -> int:
    """Returns the smallest budget of padded tokens that needs no more batches than the largest.

    A smaller budget distributes the rows evenly over the batches.
    """
    wanted = _batch_count(ascending, limits.batch_tokens, limits.batch_rows)
    low, high = 1, limits.batch_tokens
    while wanted > 1 and low < high:
        middle = (low + high) // 2
        if _batch_count(ascending, middle, limits.batch_rows) <= wanted:
            high = middle
        else:
            low = middle + 1
    return high


def _batch_count(ascending: Sequence[int], tokens: int, most_rows: int) -> int:
    """Returns how many batches the rows need, from their lengths in ascending order."""
    number = rows = 0
    for length in ascending:
        rows += 1
        if number == 0 or rows > most_rows or rows * length > tokens:
            number, rows = number + 1, 1
    return number
