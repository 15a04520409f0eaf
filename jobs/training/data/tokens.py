"""Tokenised rows: laid end to end in memory, and gathered into padded batches on the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.data.batches import Indices

INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"
"""1 for tokens that the model is trained to predict, for causal-lm."""
POSITION_IDS = "position_ids"
"""Place of each token within its sample, for packed rows: where it does not grow by one, another
sample begins."""


@dataclass(frozen=True, slots=True)
class TokenSet:
    """Token ids of every row, not padded."""

    columns: Mapping[str, NDArray[np.integer]]
    """Values of all rows end to end: `input_ids`, and others that the task uses."""
    offsets: Indices
    """(rows + 1,): where each row begins."""
    labels: Indices
    """(rows,): class numbers; zeros for causal-lm."""
    pad_token_id: int
    pads_left: bool = False
    """Whether rows are filled up before their first token, and not after their last."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Indices:
        """(rows,): tokens of each row."""
        return np.diff(self.offsets)

    @property
    def targets(self) -> Indices:
        """(rows,): what each row adds to the count that the loss is averaged over."""
        if LOSS_MASK not in self.columns:
            return np.ones(len(self), dtype=np.int64)
        sums = np.concatenate([[0], np.cumsum(self.columns[LOSS_MASK], dtype=np.int64)])
        trained: Indices = sums[self.offsets[1:]] - sums[self.offsets[:-1]]
        return trained

    def taken(self, rows: Sequence[int]) -> "TokenSet":
        """Returns a set of these rows alone, in this order."""
        places = [np.arange(self.offsets[row], self.offsets[row + 1]) for row in rows]
        index = np.concatenate(places)
        return replace(
            self,
            columns={name: column[index] for name, column in self.columns.items()},
            offsets=np.cumsum([0, *map(len, places)]),
            labels=self.labels[np.asarray(rows)],
        )

    @property
    def size_bytes(self) -> int:
        """Memory of all columns."""
        return sum(column.nbytes for column in self.columns.values())


class TokenStore:
    """A TokenSet on the device, or pinned in host memory when it does not fit there."""

    def __init__(self, tokens: TokenSet, device: torch.device, *, on_device: bool = True) -> None:
        place = device if on_device else torch.device("cpu")
        self.place = place
        self._columns = {n: torch.tensor(c, device=place) for n, c in tokens.columns.items()}
        self._offsets = torch.tensor(tokens.offsets, device=place)
        self._labels = torch.tensor(tokens.labels, device=place)
        self._pad_token_id, self._pads_left = tokens.pad_token_id, tokens.pads_left

    def gather(self, rows: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
        """Rows padded to `width`: tensors of (rows, width), and `labels` of (rows,).

        `attention_mask` is 1 for tokens and 0 for padding.
        """
        start = self._offsets[rows]
        lengths = (self._offsets[rows + 1] - start)[:, None]
        steps = torch.arange(width, device=self.place)
        if self._pads_left:
            steps = steps - (width - lengths)
        valid = (steps >= 0) & (steps < lengths)
        last = self._columns[INPUT_IDS].shape[0] - 1
        index = (start[:, None] + steps).clamp(min=0, max=last)
        batch = {
            name: torch.where(valid, column[index].long(), self._filler(name))
            for name, column in self._columns.items()
        }
        return {**batch, "attention_mask": valid.long(), "labels": self._labels[rows]}

    def _filler(self, name: str) -> int:
        return self._pad_token_id if name == INPUT_IDS else 0
