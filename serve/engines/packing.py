"""Several inputs in one row: what a CPU spends on padding is more than what wider rows cost it.

An input attends to itself alone, and counts its positions from 0, so that its scores are the same
as by itself. Measured in benchmarks/LOG.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from serve.engines.rows import Row

MOST_WIDTH = 256
"""Of a row with several inputs."""
DOUBLE_WIDTH = 700
"""Attention grows with the width of rows: at this one a token costs twice what the rest of it does.
A fit to MiniLM in bf16 on a CPU with AVX-512."""


def arrange(lengths: Sequence[int], multiple: int) -> tuple[int, list[list[int]]]:
    """The width, and which inputs are in each row, that cost least: few tokens, narrow rows.

    Tries the widths at which so many tokens could fill whole rows, and puts the longest first, each
    into the first row with room. The width is a multiple of `multiple`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    total, longest = sum(lengths), lengths[order[0]]
    best: tuple[int, list[list[int]]] = (0, [])
    least = float("inf")
    for count in range(-(-total // longest), 0, -1):
        wanted = max(longest, -(-total // count))
        width = -(-wanted // multiple) * multiple
        token = 1 + width / DOUBLE_WIDTH
        if best[1] and (total * token >= least or wanted > MOST_WIDTH):
            break  # wider rows cost more, however well they are filled
        rows = _fitted(order, lengths, width)
        if len(rows) * width * token < least:
            best, least = (width, rows), len(rows) * width * token
    return best


def _fitted(order: Sequence[int], lengths: Sequence[int], width: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[int] = []
    for index in order:
        length = lengths[index]
        for number, left in enumerate(room):
            if left >= length:
                rows[number].append(index)
                room[number] -= length
                break
        else:
            rows.append([index])
            room.append(width - length)
    return rows


@dataclass(frozen=True, slots=True)
class Packing:
    """How inputs are laid into rows."""

    pad_id: int
    multiple: int = 1
    """Of tokens, to which rows are filled up."""

    def apply(self, inputs: Sequence[Row]) -> dict[str, npt.NDArray[np.int64]]:
        """By name: ids, types, segments and positions as [rows, width], first tokens as [inputs].

        Segments number the inputs of a row from 1, with 0 for padding. First tokens are places
        among all tokens of all rows.
        """
        width, rows = arrange([len(found) for found in inputs], self.multiple)
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
