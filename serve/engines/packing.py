"""Packs several inputs into one row, which saves a CPU the computation of padding.

Each input attends to its own tokens only and its positions start at 0, so that its scores are the
same as in a row of its own. Measured in benchmarks/HISTORY.md.
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
FIRST = "first"
"""Name of the array with the place of each input's first token."""

MOST_WIDTH = 256
"""Largest width of a row with several inputs, in tokens."""
DOUBLE_WIDTH = 700
"""Width at which a token costs twice as much as in a very narrow row, because the cost of attention
grows with the width. Fitted to MiniLM in bf16 on a CPU with AVX-512."""
DYNAMIC_COST = 1.05
"""Cost of a token in a dynamic-shape graph, relative to a static-shape graph."""
LEAST_TOKENS = 6
"""Mean tokens of an input that the capacity of a static-shape graph assumes; see `capacity`."""
USUAL_LENGTHS = tuple(range(5, 41))
"""Assumed lengths of inputs, in tokens, for a model without an evaluation sample."""
STEPS, FULL = 4, 0.8
"""Widths of single-row graphs per width of a many-row graph; and the smallest share of a batch's
tokens for which a number of rows gets a static-shape graph."""


def arrange(lengths: Sequence[int], multiple: int) -> tuple[int, list[list[int]]]:
    """Returns the cheapest width and the inputs of each row at this width.

    Candidates are the widths, as multiples of `multiple`, at which the tokens could fill a whole
    number of rows.

    Args:
        lengths: Tokens of each input.
        multiple: The width is a multiple of this number of tokens.
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
            break  # wider rows cost more even without padding
        rows = pack(lengths, width)
        if cost((len(rows), width)) < least:
            best, least = (width, rows), cost((len(rows), width))
    return best


def cost(shape: Shape) -> float:
    """Returns the cost of a batch of a shape, in tokens of a very narrow row."""
    rows, width = shape
    return rows * width * (1 + width / DOUBLE_WIDTH)


def pack(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Returns the inputs of each row: the longest remaining one, and others that fill the row best.

    The best filling is the largest subset sum, computed with bit sets. Best-fit decreasing, which
    training uses for its larger batches, sometimes needs one row more, a tenth of a batch here.
    """
    left = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    rows: list[list[int]] = []
    while left:
        longest, *others = left
        remaining = width - lengths[longest]
        sums = [1]  # bit sets of the sums of subsets of no other input, of the first, first two, …
        for index in others:
            sums.append((sums[-1] | sums[-1] << lengths[index]) & ((2 << remaining) - 1))
            if sums[-1] >> remaining:
                break
        row, total = [longest], sums[-1].bit_length() - 1
        for count in range(len(sums) - 1, 0, -1):
            if not sums[count - 1] >> total & 1:  # the sum needs the last of these inputs
                row.insert(1, others[count - 1])
                total -= lengths[others[count - 1]]
        rows.append(row)
        left = [index for index in others if index not in row]
    return rows


def fit(lengths: Sequence[int], shape: Shape) -> list[list[int]] | None:
    """Returns the inputs of each row of a shape, possibly none; None if they do not fit."""
    most, width = shape
    if sum(lengths) > most * width or max(lengths) > width:
        return None
    rows = pack(lengths, width)
    return rows + [[]] * (most - len(rows)) if len(rows) <= most else None


def capacity(shape: Shape) -> int:
    """Returns the most inputs that a static-shape graph accepts."""
    rows, width = shape
    return rows * width // LEAST_TOKENS


def usual_shapes(lengths: Sequence[int], multiple: int, batch_tokens: int) -> tuple[Shape, ...]:
    """Returns the shapes for which static-shape graphs are worth their memory, most useful first.

    Two kinds alternate. Shapes of one row, for few inputs, have many widths, the ones of most
    single inputs first. Shapes of many rows, for full batches, have the cheapest width and about as
    many rows as a batch's tokens allow, the nearest to it first.

    Args:
        lengths: Tokens of typical inputs; USUAL_LENGTHS if empty.
        multiple: Widths are multiples of this number of tokens.
        batch_tokens: Tokens of a full batch.
    """
    lengths = lengths or USUAL_LENGTHS
    width, _ = arrange(lengths, multiple)
    step = max(1, round(width / STEPS / multiple)) * multiple
    alone = Counter(-(-length // step) * step for length in lengths)
    few = [(1, wide) for wide in range(step, 2 * width + 1, step)]
    few.sort(key=lambda shape: -alone[shape[1]])
    first, last = (int(share * batch_tokens) // width for share in (FULL, LEFTOVER))
    many = [(rows, width) for rows in range(max(3, first), last + 2)]  # a batch never fills all
    many.sort(key=lambda shape: abs((shape[0] - 0.5) * width - batch_tokens))
    return tuple(shape for turn in zip_longest(few, many) for shape in turn if shape)


@dataclass(slots=True)
class Packing:
    """Packs inputs into rows, and remembers the last shape of the dynamic-shape graph."""

    pad_id: int
    multiple: int = 1
    """Every width is a multiple of this number of tokens."""
    spare: float = 0.0
    """Cost of a change of shape in tokens: up to so much padding is accepted to avoid one."""
    last: Shape = (0, 0)
    """Last shape of the dynamic-shape graph."""
    static_shapes: tuple[Shape, ...] = ()
    """Shapes with a static-shape graph, the cheapest first."""

    def arrange(self, lengths: Sequence[int]) -> tuple[int, list[list[int]]]:
        """Returns the width and the inputs of each row.

        A shape with a static-shape graph, or the last shape, is used if it is cheaper than the
        shape of the function `arrange`.
        """
        shape, rows = self._static_fit(lengths)
        total, longest = sum(lengths), max(lengths)
        least = DYNAMIC_COST * cost((1, longest)) * total / longest + self.spare
        if rows and cost(shape) <= least:
            return shape[1], rows
        width, best = arrange(lengths, self.multiple)
        other = len(best), width
        if rows and cost(shape) <= DYNAMIC_COST * cost(other) + self.spare:
            return shape[1], rows
        if other != self.last and cost(self.last) <= cost(other) + self.spare:
            kept = fit(lengths, self.last)
            if kept:
                return self.last[1], kept
        self.last = other
        return width, best

    def _static_fit(self, lengths: Sequence[int]) -> tuple[Shape, list[list[int]]]:
        """Returns the cheapest fitting static shape and its rows; no rows if none fits."""
        for shape in self.static_shapes:
            if len(lengths) <= capacity(shape) and (rows := fit(lengths, shape)):
                return shape, rows
        return (0, 0), []

    def has_graph(self, shape: Shape, inputs: int) -> bool:
        """Returns True if a static-shape graph of this shape accepts so many inputs."""
        return shape in self.static_shapes and inputs <= capacity(shape)

    def apply(self, inputs: Sequence[Row]) -> Arrays:
        """Packs a batch and returns the graph's arrays by name.

        `input_ids`, `token_type_ids`, `segment_ids` and `position_ids` are [rows, width]. Segments
        number the inputs of a row from 1; padding has 0. `first`, [inputs], has the index of each
        input's first token among all tokens of the batch; for a static-shape graph it is
        [capacity], with zeros at the end.
        """
        width, rows = self.arrange([len(row) for row in inputs])
        shape = len(rows), width
        is_static = self.has_graph(shape, len(inputs))
        arrays = self.empty(shape, capacity(shape) if is_static else len(inputs))
        ids, types, segments, positions, first = arrays.values()
        counting = np.arange(width)
        for row, members in enumerate(rows):
            begin = 0
            for segment, index in enumerate(members, 1):
                source = inputs[index]
                place = slice(begin, begin + len(source))
                ids[row, place], segments[row, place] = source.ids, segment
                positions[row, place] = counting[: len(source)]
                if source.types:
                    types[row, place] = source.types
                first[index] = row * width + begin
                begin = place.stop
        return arrays

    def empty(self, shape: Shape, inputs: int) -> Arrays:
        """Returns the arrays of `apply` for a shape with padding only."""
        ids, types, segments, positions = np.zeros((4, *shape), dtype=np.int64)
        ids[:] = self.pad_id
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "segment_ids": segments,
            "position_ids": positions,
            FIRST: np.zeros(inputs, dtype=np.int64),
        }
