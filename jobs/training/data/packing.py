"""Packs several short samples into one row; positions restart at each sample to separate them."""

import bisect

import numpy as np

from jobs.training.data.batches import Indices
from jobs.training.data.tokens import POSITION_IDS, TokenSet


def assign(lengths: Indices, capacity: int) -> list[list[int]]:
    """Assigns samples to rows of at most `capacity` tokens; returns the samples of each row.

    Best fit, longest first. No sample may be longer than `capacity`.
    """
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # free tokens and row, kept sorted
    sizes: list[int] = lengths.tolist()
    order: list[int] = np.argsort(-lengths, kind="stable").tolist()
    for sample in order:
        length = sizes[sample]
        place = bisect.bisect_left(spaces, (length, -1))
        if place < len(spaces):
            free, row = spaces.pop(place)
            rows[row].append(sample)
        else:
            free, row = capacity, len(rows)
            rows.append([sample])
        if free > length:  # full rows need not be searched
            bisect.insort(spaces, (free - length, row))
    return rows


def pack(tokens: TokenSet, capacity: int) -> TokenSet:
    """Packs samples into rows of up to `capacity` tokens; positions of each sample start at 0."""
    rows = assign(tokens.lengths, capacity)
    order = np.concatenate([np.asarray(row) for row in rows])
    lengths = tokens.lengths[order]
    index = np.repeat(tokens.offsets[order] - np.cumsum(lengths) + lengths, lengths)
    index += np.arange(len(index))
    columns = {name: column[index] for name, column in tokens.columns.items()}
    starts = np.cumsum(lengths) - lengths
    columns[POSITION_IDS] = (np.arange(len(index)) - np.repeat(starts, lengths)).astype(np.int32)
    sizes = [int(tokens.lengths[row].sum()) for row in rows]
    return TokenSet(
        columns,
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.zeros(len(rows), np.int64),
        tokens.pad_token_id,
    )
