"""Several inputs in one row: what a CPU spends on padding is more than what wider rows cost it.

An input attends to itself alone, and counts its positions from 0, so that its scores are the same
as by itself. Measured in benchmarks/HISTORY.md.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from serve.batching.policy import LEFTOVER
from serve.batching.rows import Row
from serve.engines.engine import Shape

Arrays = dict[str, npt.NDArray[np.int64]]

MOST_WIDTH = 256
"""Of a row with several inputs."""
DOUBLE_WIDTH = 700
"""Attention grows with the width of rows: at this one a token costs twice what the rest of it does.
A fit to MiniLM in bf16 on a CPU with AVX-512."""
FREE_COST = 1.05
"""What a token costs under a graph for any shape, to one under a graph that is made for its
shape."""
LEAST_TOKENS = 6
"""Of an input on average: a graph that is made for a shape takes no more inputs than that allows.
"""
USUAL_LENGTHS = tuple(range(5, 41))
"""What inputs are taken for where a model has no evaluation rows."""
STEPS, FULL = 4, 0.8
"""How finely widths of a single row are told apart, to one row of many, and from which share of a
batch's budget on a number of rows has a graph of its own."""


def arrange(lengths: Sequence[int], multiple: int) -> tuple[int, list[list[int]]]:
    """The width, and which inputs are in each row, that cost least: few tokens, narrow rows.

    Tries the widths at which so many tokens could fill whole rows, as multiples of `multiple`.
    """
    total, longest = sum(lengths), max(lengths)
    best: tuple[int, list[list[int]]] = (0, [])
    least, tried = float("inf"), 0
    for count in range(-(-total // longest), 0, -1):
        wanted = max(longest, -(-total // count))
        width = -(-wanted // multiple) * multiple
        if width == tried:
            continue
        tried = width
        if best[1] and (cost((1, width)) * total / width >= least or wanted > MOST_WIDTH):
            break  # wider rows cost more, however well they are filled
        rows = filled(lengths, width)
        if cost((len(rows), width)) < least:
            best, least = (width, rows), cost((len(rows), width))
    return best


def cost(shape: Shape) -> float:
    """Of rows and their width, in tokens of narrow rows."""
    rows, width = shape
    return rows * width * (1 + width / DOUBLE_WIDTH)


def filled(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Which inputs are in each row: the longest that is left, and those others that fill it best.

    By all sums that they can make, as bits: best fit, which training packs many more with, needs a
    row more now and then, which is a tenth of a batch.
    """
    left = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    rows: list[list[int]] = []
    while left:
        longest, *others = left
        room = width - lengths[longest]
        sums = [1]  # those of no other, of the first, of the first two
        for index in others:
            sums.append((sums[-1] | sums[-1] << lengths[index]) & ((2 << room) - 1))
            if sums[-1] >> room:
                break
        row, total = [longest], sums[-1].bit_length() - 1
        for count in range(len(sums) - 1, 0, -1):
            if not sums[count - 1] >> total & 1:  # not without the last of them
                row.insert(1, others[count - 1])
                total -= lengths[others[count - 1]]
        rows.append(row)
        left = [index for index in others if index not in row]
    return rows


def fit(lengths: Sequence[int], shape: Shape) -> list[list[int]] | None:
    """Which inputs are in each row of a shape, some in none; None where they do not fit."""
    most, width = shape
    if sum(lengths) > most * width or max(lengths) > width:
        return None
    rows = filled(lengths, width)
    return rows + [[]] * (most - len(rows)) if len(rows) <= most else None


def room(shape: Shape) -> int:
    """How many inputs a graph takes that is made for a shape."""
    rows, width = shape
    return rows * width // LEAST_TOKENS


def usual_shapes(lengths: Sequence[int], multiple: int, batch_tokens: int) -> tuple[Shape, ...]:
    """Shapes worth a graph of their own where inputs have such lengths: of few and many by turns.

    Few inputs share one row, of which many widths are there, those of most lone inputs first; many
    fill rows of the width that suits them, about as many as a batch's budget allows, those next to
    it first.
    """
    lengths = lengths or USUAL_LENGTHS
    width, _ = arrange(lengths, multiple)
    step = max(1, round(width / STEPS / multiple)) * multiple
    alone = Counter(-(-length // step) * step for length in lengths)
    few = [(1, wide) for wide in range(step, 2 * width + 1, step)]
    few.sort(key=lambda shape: -alone[shape[1]])
    first, last = (int(share * batch_tokens) // width for share in (FULL, LEFTOVER))
    many = [(rows, width) for rows in range(max(3, first), last + 2)]  # no batch fills all rows
    many.sort(key=lambda shape: abs((shape[0] - 0.5) * width - batch_tokens))
    return tuple(shape for turn in zip_longest(few, many) for shape in turn if shape)


@dataclass(slots=True)
class Packing:
    """How inputs are laid into rows; remembers the last shape, for which a graph is prepared."""

    pad_id: int
    multiple: int = 1
    """Of tokens, to which rows are filled up."""
    spare: float = 0.0
    """Tokens that may be wasted to stay with the last shape: what another one costs."""
    last: Shape = (0, 0)
    """Rows and width."""
    made: tuple[Shape, ...] = ()
    """Shapes that have a graph of their own, the cheapest first."""

    def arrange(self, lengths: Sequence[int]) -> tuple[int, list[list[int]]]:
        """As the function does, or in a shape for which a graph is there where that costs less."""
        shape, rows = self._made(lengths)
        total, longest = sum(lengths), max(lengths)
        least = FREE_COST * cost((1, longest)) * total / longest + self.spare
        if rows and cost(shape) <= least:
            return shape[1], rows
        width, free = arrange(lengths, self.multiple)
        other = len(free), width
        if rows and cost(shape) <= FREE_COST * cost(other) + self.spare:
            return shape[1], rows
        if other != self.last and cost(self.last) <= cost(other) + self.spare:
            kept = fit(lengths, self.last)
            if kept:
                return self.last[1], kept
        self.last = other
        return width, free

    def _made(self, lengths: Sequence[int]) -> tuple[Shape, list[list[int]]]:
        """The cheapest shape with a graph of its own, and its rows; none where nothing fits."""
        for shape in self.made:
            if len(lengths) <= room(shape) and (rows := fit(lengths, shape)):
                return shape, rows
        return (0, 0), []

    def has_graph(self, shape: Shape, inputs: int) -> bool:
        """Whether a graph is made for a shape that takes so many inputs."""
        return shape in self.made and inputs <= room(shape)

    def apply(self, inputs: Sequence[Row]) -> Arrays:
        """By name: ids, types, segments and positions as [rows, width], first tokens as [inputs].

        Segments number the inputs of a row from 1, with 0 for padding. First tokens are places
        among all tokens of all rows; a graph that is made for a shape has some to spare.
        """
        width, rows = self.arrange([len(found) for found in inputs])
        shape = len(rows), width
        is_own = self.has_graph(shape, len(inputs))
        arrays = self.empty(shape, room(shape) if is_own else len(inputs))
        ids, types, segments, positions, first = arrays.values()
        counting = np.arange(width)
        for row, members in enumerate(rows):
            begin = 0
            for segment, index in enumerate(members, 1):
                found = inputs[index]
                place = slice(begin, begin + len(found))
                ids[row, place], segments[row, place] = found.ids, segment
                positions[row, place] = counting[: len(found)]
                if found.types:
                    types[row, place] = found.types
                first[index] = row * width + begin
                begin = place.stop
        return arrays

    def empty(self, shape: Shape, inputs: int) -> Arrays:
        """What `apply` gives of a shape before any input is in it."""
        ids, types, segments, positions = np.zeros((4, *shape), dtype=np.int64)
        ids[:] = self.pad_id
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "segment_ids": segments,
            "position_ids": positions,
            "first": np.zeros(inputs, dtype=np.int64),
        }
