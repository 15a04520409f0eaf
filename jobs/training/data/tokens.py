"""Tokenised rows: laid end to end in memory, and gathered into padded batches on the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.data.batches import WIDTH_MULTIPLE, Indices

INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"
"""1 for tokens that the model is trained to predict, for causal-lm."""
TOKEN_LABELS = "token_labels"
"""Number of each token's label, for tasks that label tokens; IGNORED for tokens without one."""
TARGET_IDS = "target_ids"
"""Ragged column with the tokens that a decoder writes."""
IGNORED = -100
"""Label of tokens that are neither trained nor judged, and what targets are padded with;
cross-entropy in torch ignores it."""
POSITION_IDS = "position_ids"
"""Place of each token within its sample, for packed rows: a sample begins at 0."""
SAMPLE_ENDS = "sample_ends"
"""Where the samples of a batch of packed rows end, in tokens of all rows, (most samples + 1,)."""
FILLERS = {TOKEN_LABELS: IGNORED, POSITION_IDS: 1}
"""Padding of token columns other than `input_ids`; 0 for columns that are not named here. Padding
behind packed samples begins no sample."""
MASKED_IDS = "masked_ids"
"""Tokens that an evaluation shows the model, for tasks that predict hidden tokens: those that
`loss_mask` names, at their own places."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column whose rows have lengths of their own, such as the target of a sequence."""

    values: NDArray[np.generic]
    """Of all rows end to end, integers or floats."""
    offsets: Indices
    """(rows + 1,): where each row begins."""
    filler: float = 0
    """What rows are padded with on the right."""
    is_sequence: bool = False
    """Whether it is a further sequence of tokens for the model, such as the second text of a pair
    that is read by itself: it is padded as the row's own tokens are, to the same width."""
    fixed_width: int | None = None
    """Width of the set that these rows were taken from; None for a whole set."""

    @property
    def lengths(self) -> Indices:
        """(rows,): values of each row."""
        return np.diff(self.offsets)

    @property
    def width(self) -> int:
        """Longest row, rounded up: every batch has this width, so that steps are captured once."""
        if self.fixed_width is not None:
            return self.fixed_width
        longest = int(np.diff(self.offsets).max(initial=1))
        return -(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE

    def taken(self, rows: Sequence[int]) -> "Ragged":
        """Returns these rows alone, in this order, of the same width."""
        index, offsets = _places(self.offsets, rows)
        values = self.values[index]
        return replace(self, values=values, offsets=offsets, fixed_width=self.width)


@dataclass(frozen=True, slots=True)
class TokenSet:
    """Token ids of every row, not padded."""

    columns: Mapping[str, NDArray[np.integer]]
    """Values of all rows end to end: `input_ids`, and others that the task uses."""
    offsets: Indices
    """(rows + 1,): where each row begins."""
    labels: NDArray[np.generic]
    """Rows first: class numbers, (rows,); numbers to predict, (rows,) or (rows, n); zeros where a
    task has none."""
    pad_token_id: int
    pads_left: bool = False
    """Whether rows are filled up before their first token, and not after their last."""
    sample_slots: int = 0
    """Samples of a micro batch of packed rows that the model is told the ends of; 0 if it is told
    none, and a mask separates them."""
    ragged: Mapping[str, Ragged] = field(default_factory=dict)
    """Further columns with lengths of their own, such as labels for each token of a target."""
    lengths: Indices = field(init=False, repr=False, compare=False)
    """(rows,): tokens of each row, or of its longest sequence if it has several; computed once."""

    def __post_init__(self) -> None:
        others = [column.lengths for column in self.ragged.values() if column.is_sequence]
        lengths = np.maximum.reduce([np.diff(self.offsets), *others])
        object.__setattr__(self, "lengths", lengths)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def first_sequence(self) -> "TokenSet":
        """The set without the further sequences of tokens of its rows."""
        kept = {name: each for name, each in self.ragged.items() if not each.is_sequence}
        return replace(self, ragged=kept)

    @property
    def targets(self) -> Indices:
        """(rows,): what each row adds to the count that the loss is averaged over."""
        if TARGET_IDS in self.ragged:
            return self.ragged[TARGET_IDS].lengths
        if any(column.is_sequence for column in self.ragged.values()):
            return np.ones(len(self), dtype=np.int64)  # the loss compares the sequences of a row
        if LOSS_MASK in self.columns:
            counted = self.columns[LOSS_MASK]
        elif TOKEN_LABELS in self.columns:
            counted = self.columns[TOKEN_LABELS] != IGNORED
        else:
            return np.ones(len(self), dtype=np.int64)
        sums = np.concatenate([[0], np.cumsum(counted, dtype=np.int64)])
        trained: Indices = sums[self.offsets[1:]] - sums[self.offsets[:-1]]
        return trained

    def taken(self, rows: Sequence[int]) -> "TokenSet":
        """Returns a set of these rows alone, in this order."""
        index, offsets = _places(self.offsets, rows)
        return replace(
            self,
            columns={name: column[index] for name, column in self.columns.items()},
            offsets=offsets,
            labels=self.labels[np.asarray(rows)],
            ragged={name: column.taken(rows) for name, column in self.ragged.items()},
        )

    @property
    def size_bytes(self) -> int:
        """Memory of all columns and labels."""
        others = sum(column.values.nbytes for column in self.ragged.values())
        own = sum(column.nbytes for column in self.columns.values())
        return own + others + self.labels.nbytes


class TokenStore:
    """A TokenSet on the device, or pinned in host memory when it does not fit there."""

    def __init__(self, tokens: TokenSet, device: torch.device, *, on_device: bool = True) -> None:
        place = device if on_device else torch.device("cpu")
        self.place = place
        self._columns = {n: torch.tensor(c, device=place) for n, c in tokens.columns.items()}
        self._offsets = torch.tensor(tokens.offsets, device=place)
        self._labels = torch.tensor(tokens.labels, device=place)
        self._pad_token_id, self._pads_left = tokens.pad_token_id, tokens.pads_left
        self._sample_slots = tokens.sample_slots
        self._ragged = {
            name: (
                torch.tensor(np.append(column.values, column.filler), device=place).to(
                    torch.from_numpy(column.values[:0].copy()).dtype
                ),
                torch.tensor(column.offsets, device=place),
                None if column.is_sequence else column.width,
                column.filler,
            )
            for name, column in tokens.ragged.items()
        }

    def gather(self, rows: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
        """Rows padded to `width`: tensors of (rows, width), and `labels`, rows first.

        `attention_mask` is 1 for tokens and 0 for padding; `sample_ends` says where packed samples
        end, if the model is to be told. A ragged column is (rows, its width),
        or (rows, width) if it is a sequence of tokens, and `<name>_mask` is 1 for its values and 0
        for its padding.
        """
        last = self._columns[INPUT_IDS].shape[0] - 1
        index, valid = self._places(self._offsets, rows, width, last, pads_left=self._pads_left)
        batch = {
            name: torch.where(valid, column[index].long(), self._filler(name))
            for name, column in self._columns.items()
        }
        batch |= {"attention_mask": valid.long(), "labels": self._labels[rows]}
        for name in self._ragged:
            batch[name], batch[f"{name}_mask"] = self._gather_ragged(name, rows, width)
        if self._sample_slots:
            batch[SAMPLE_ENDS] = sample_ends(batch[POSITION_IDS], self._sample_slots)
        return batch

    def _gather_ragged(
        self, name: str, rows: torch.Tensor, width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, offsets, own_width, filler = self._ragged[name]
        is_sequence = own_width is None
        index, valid = self._places(
            offsets,
            rows,
            own_width or width,
            values.shape[0] - 1,
            pads_left=is_sequence and self._pads_left,
        )
        found = values[index].long() if is_sequence else values[index]
        return torch.where(valid, found, torch.full_like(found, filler)), valid.long()

    def _places(
        self, offsets: torch.Tensor, rows: torch.Tensor, width: int, last: int, *, pads_left: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the values of padded rows are, and which are real, each (rows, width)."""
        start = offsets[rows]
        lengths = (offsets[rows + 1] - start)[:, None]
        steps = torch.arange(width, device=self.place)
        if pads_left:
            steps = steps - (width - lengths)
        index = (start[:, None] + steps).clamp(min=0, max=last)
        return index, (steps >= 0) & (steps < lengths)

    def _filler(self, name: str) -> int:
        return self._pad_token_id if name == INPUT_IDS else FILLERS.get(name, 0)


def sample_ends(positions: torch.Tensor, slots: int) -> torch.Tensor:
    """Returns where the samples of packed rows end, in tokens of all rows, (slots + 1,).

    The first is 0; slots that no sample needs are empty samples at the end. A sample begins at each
    position 0, (rows, tokens).
    """
    begins = positions.flatten() == 0
    total = len(begins)
    ends = torch.full((slots + 2,), total, dtype=torch.int32, device=positions.device)
    slot_of = torch.where(begins, begins.cumsum(0) - 1, slots + 1)
    places = torch.arange(total, dtype=torch.int32, device=positions.device)
    return ends.scatter_(0, slot_of, places)[: slots + 1]


def _places(offsets: Indices, rows: Sequence[int]) -> tuple[Indices, Indices]:
    """Where the values of rows are, one after the other, and the offsets of these rows alone."""
    places = [np.arange(offsets[row], offsets[row + 1]) for row in rows]
    return np.concatenate(places), np.cumsum([0, *map(len, places)])
