"""Several inputs in one row: what a CPU spends on padding is more than what wider rows cost it.

An input attends to itself alone, and counts its positions from 0, so that its scores are the same
as by itself. Measured in benchmarks/LOG.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.training.data.packing import assign
from serve.engines.engine import Shape
from serve.engines.rows import Row

MOST_WIDTH = 256
"""Of a row with several inputs."""
DOUBLE_WIDTH = 700
"""Attention grows with the width of rows: at this one a token costs twice what the rest of it does.
A fit to MiniLM in bf16 on a CPU with AVX-512."""


def arrange(lengths: Sequence[int], multiple: int) -> tuple[int, list[list[int]]]:
    """The width, and which inputs are in each row, that cost least: few tokens, narrow rows.

    Tries the widths at which so many tokens could fill whole rows, as multiples of `multiple`.
    """
    known = np.asarray(lengths, dtype=np.int64)
    total, longest = int(known.sum()), int(known.max())
    best: tuple[int, list[list[int]]] = (0, [])
    least = float("inf")
    for count in range(-(-total // longest), 0, -1):
        wanted = max(longest, -(-total // count))
        width = -(-wanted // multiple) * multiple
        if best[1] and (cost((1, width)) * total / width >= least or wanted > MOST_WIDTH):
            break  # wider rows cost more, however well they are filled
        rows = assign(known, width)
        if cost((len(rows), width)) < least:
            best, least = (width, rows), cost((len(rows), width))
    return best


def cost(shape: Shape) -> float:
    """Of rows and their width, in tokens of narrow rows."""
    rows, width = shape
    return rows * width * (1 + width / DOUBLE_WIDTH)


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

    def arrange(self, lengths: Sequence[int]) -> tuple[int, list[list[int]]]:
        """As the function does, or the last shape where that costs little more."""
        width, rows = arrange(lengths, self.multiple)
        most, last_width = self.last
        shape = len(rows), width
        if shape != self.last and max(lengths) <= last_width:
            kept = assign(np.asarray(lengths, dtype=np.int64), last_width)
            if len(kept) <= most and cost(self.last) <= cost(shape) + self.spare:
                return last_width, kept + [[]] * (most - len(kept))
        self.last = shape
        return width, rows

    def apply(self, inputs: Sequence[Row]) -> dict[str, npt.NDArray[np.int64]]:
        """By name: ids, types, segments and positions as [rows, width], first tokens as [inputs].

        Segments number the inputs of a row from 1, with 0 for padding. First tokens are places
        among all tokens of all rows.
        """
        width, rows = self.arrange([len(found) for found in inputs])
        arrays = np.zeros((4, len(rows), width), dtype=np.int64)
        ids, types, segments, positions = arrays
        ids[:] = self.pad_id
        first = np.empty(len(inputs), dtype=np.int64)
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
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "segment_ids": segments,
            "position_ids": positions,
            "first": first,
        }
