"""Which waiting texts are answered together: blocks of the oldest, by length. Pure."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.training.config import Device

BLOCK_BATCHES: dict[Device, float] = {"cpu": 2.5, "cuda": 8.0}
"""Tokens of a block in full batches: how long who comes later waits, and how alike in length the
texts of a batch are. On a CPU a batch takes tens of milliseconds."""
LEFTOVER = 1.25
"""A packed batch may have so many times its tokens when nothing is left waiting then: a few texts
left over would wait for a whole batch more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch and the queue hold."""

    batch_tokens: int = 512
    """Padded tokens of a batch; a row that alone has more is a batch of its own."""
    batch_rows: int = 64
    queue_tokens: int = 262_144
    """Tokens that may wait."""
    idle_wait_s: float = 0.0
    """How long an idle engine waits for company of a lone text."""
    block_batches: float = BLOCK_BATCHES["cuda"]
    """Tokens of what is sorted by length at once, in full batches."""
    is_packed: bool = False
    """Whether the engine spends nothing on padding: then nothing is sorted."""


def block(lengths: Sequence[int], limits: Limits) -> list[list[int]]:
    """The next batches, as positions in the queue, from row lengths in order of arrival.

    They are all that waits, or the oldest of a long queue: who comes meanwhile is in the next
    block, so that nobody is passed over twice. Neighbours in length are in one batch, few rows are
    split evenly, and the batch with the oldest goes first. For an engine that packs, it is one
    batch of the oldest, or of all when few would be left. Measured in benchmarks/HISTORY.md.
    """
    if limits.is_packed:
        is_all = sum(lengths) <= LEFTOVER * limits.batch_tokens
        fitting = len(lengths) if is_all else _count(lengths, limits.batch_tokens)
        return [list(range(min(fitting, limits.batch_rows)))]
    most = limits.block_batches * limits.batch_tokens
    order = sorted(range(_count(lengths, most)), key=lengths.__getitem__)
    tokens = _least_tokens([lengths[index] for index in order], limits)
    batches: list[list[int]] = []
    for index in order:
        # in ascending order the newest row is the widest
        rows = len(batches[-1]) + 1 if batches else 0
        if rows and rows <= limits.batch_rows and rows * lengths[index] <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return sorted(batches, key=min)


def is_one(lengths: Sequence[int], limits: Limits) -> bool:
    """Whether one batch takes all of these rows."""
    batches = block(lengths, limits)
    return len(batches) == 1 and len(batches[0]) == len(lengths)


def is_full(lengths: Sequence[int], limits: Limits) -> bool:
    """Whether a batch of these rows has no room for another of their mean length."""
    more = len(lengths) + 1
    return more > limits.batch_rows or sum(lengths) * more > limits.batch_tokens * len(lengths)


def _count(lengths: Sequence[int], most: float) -> int:
    """How many of the first have no more tokens than that; at least one."""
    found = bisect.bisect_right(list(itertools.accumulate(lengths)), most)
    return max(1, found)


def _least_tokens(ascending: Sequence[int], limits: Limits) -> int:
    """The smallest batches in padded tokens that are no more in number than the largest."""
    wanted = _number(ascending, limits.batch_tokens, limits.batch_rows)
    low, high = 1, limits.batch_tokens
    while wanted > 1 and low < high:
        middle = (low + high) // 2
        if _number(ascending, middle, limits.batch_rows) <= wanted:
            high = middle
        else:
            low = middle + 1
    return high


def _number(ascending: Sequence[int], tokens: int, most_rows: int) -> int:
    number = rows = 0
    for length in ascending:
        rows += 1
        if number == 0 or rows > most_rows or rows * length > tokens:
            number, rows = number + 1, 1
    return number
