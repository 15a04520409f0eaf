"""Rows with labels of any shape, and columns with lengths of their own."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from jobs.training.data.tokens import Ragged, TokenSet, TokenStore

CPU = torch.device("cpu")
ROWS = [[5, 6, 7], [8], [9, 10]]
TARGETS = [[1.5], [2.5, 3.5, 4.5, 5.5, 6.5], []]


def flat(rows: list[list[Any]], kind: Any) -> tuple[Any, Any]:
    return np.array([*itertools.chain(*rows)], kind), np.cumsum([0, *map(len, rows)])


def tokens(labels: Any, **fields: Any) -> TokenSet:
    ids, offsets = flat(ROWS, np.int64)
    return TokenSet({"input_ids": ids}, offsets, labels, pad_token_id=0, **fields)


def test_lengths_are_computed_once_and_follow_the_rows_that_are_taken() -> None:
    whole = tokens(np.array([2, 0, 1]))
    assert whole.lengths is whole.lengths
    assert whole.lengths.tolist() == [3, 1, 2]
    assert whole.taken([2, 0]).lengths.tolist() == [2, 3]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2, 0, 1]),
        np.array([0.25, -1.0, 3.5], np.float32),
        np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32),
    ],
    ids=["classes", "numbers", "vectors"],
)
def test_labels_of_any_type_and_shape_reach_the_batch(labels: Any) -> None:
    store = TokenStore(tokens(labels), CPU)
    batch = store.gather(torch.tensor([2, 0]), 4)
    assert batch["input_ids"].tolist() == [[9, 10, 0, 0], [5, 6, 7, 0]]
    assert batch["labels"].numpy().tolist() == labels[[2, 0]].tolist()
    assert batch["labels"].numpy().dtype == labels.dtype


@pytest.mark.parametrize("pads_left", [False, True])
def test_a_ragged_column_is_padded_to_a_width_of_its_own(pads_left: bool) -> None:  # noqa: FBT001
    values, offsets = flat(TARGETS, np.float32)
    column = Ragged(values, offsets, filler=-100.0)
    whole = tokens(np.zeros(3, np.int64), ragged={"target": column}, pads_left=pads_left)
    assert column.width == 8
    for source, rows in ((whole, [1, 2, 0]), (whole.taken([1, 2, 0]), [0, 1, 2])):
        batch = TokenStore(source, CPU).gather(torch.tensor(rows), 3)
        assert batch["target"].shape == (3, 8)
        for found, mask, row in zip(batch["target"], batch["target_mask"], (1, 2, 0), strict=True):
            wanted = TARGETS[row]
            assert found.tolist() == [*wanted, *[-100.0] * (8 - len(wanted))]
            assert mask.tolist() == [*[1] * len(wanted), *[0] * (8 - len(wanted))]


def test_a_column_without_any_value_is_all_padding() -> None:
    column = Ragged(np.zeros(0, np.int64), np.zeros(4, np.int64), filler=7)
    ids, offsets = flat(ROWS, np.int64)
    source = TokenSet({"input_ids": ids}, offsets, np.zeros(3, np.int64), 0, ragged={"t": column})
    batch = TokenStore(source, CPU).gather(torch.tensor([0]), 3)
    assert (batch["t"].tolist(), batch["t"].dtype) == ([[7, 7, 7, 7]], torch.int64)
