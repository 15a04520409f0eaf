"""Tokenised rows, and the arrays that engines take and return."""

import copy
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Text = tuple[str, ...]
"""One text, or a pair."""
SPREAD_TEXTS = 64
"""So many are worth waking other cores for; fewer took longer with them."""
Matrix = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
PendingBatch = Callable[[], Logits]
"""Returns the logits of a launched batch; on a CPU they are computed then."""


@dataclass(frozen=True, slots=True)
class Row:
    """One input as token ids."""

    ids: Sequence[int]
    types: Sequence[int]
    """0 in the first text, 1 in the second; empty where a lone text has only 0."""
    is_cut: bool = False
    """Whether the input was longer than the model takes."""

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """The model's fast tokenizer, without its Python layer: it lets go of the interpreter lock."""

    def __init__(self, folder: Path, max_length: int, *, is_spread: bool = False) -> None:
        """With `is_spread` many texts are tokenised on all cores."""
        self._is_spread = is_spread
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores are the engine's
        import transformers  # fronts get their tokenizer from elsewhere, and are light without

        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        self.pad_id = int(loaded.pad_token_id or 0)
        self.pads_left = loaded.padding_side == "left"
        self.input_names: tuple[str, ...] = tuple(loaded.model_input_names)
        self._fast = loaded.backend_tokenizer
        self._fast.enable_truncation(max_length, direction=loaded.truncation_side)
        self._fast.no_padding()
        self._has_lone_types = any(self._fast.encode("a").type_ids)
        self._plain = Plain.of(self._fast)

    def on_one_core(self) -> "Tokenizer":
        """The same for a process that has company."""
        found = copy.copy(self)
        found._is_spread = False
        return found

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """What rows of token ids read as, without special tokens."""
        return list(self._fast.decode_batch([list(row) for row in rows]))

    def rows(self, texts: Sequence[Text]) -> list[Row]:
        """Each text or pair as a row, cut to the model's length."""
        fast = self._fast
        if self._plain and (simple := self._plain.texts(texts)):
            fast, texts = self._plain.fast, simple
        inputs = [text[0] if len(text) == 1 else text for text in texts]
        if self._is_spread and len(texts) >= SPREAD_TEXTS:
            from jobs.training.data.encoding import parallel_tokenizers  # loads torch

            with parallel_tokenizers():
                found = fast.encode_batch_fast(inputs)
        else:
            found = fast.encode_batch_fast(inputs)
        has_types = self._has_lone_types or any(len(text) > 1 for text in texts)
        return [
            Row(row.ids, row.type_ids if has_types else (), bool(row.overflowing)) for row in found
        ]


@dataclass(frozen=True, slots=True)
class Plain:
    """A way around BERT's normaliser, which takes a third of the time and leaves ASCII as it is.

    But for control characters, which are not taken, and capital letters.
    """

    fast: Any
    """The same tokenizer without it."""
    is_lower: bool
    added: tuple[str, ...]
    """Tokens that are looked for in a text as a whole, such as [SEP]."""

    @classmethod
    def of(cls, fast: Any) -> "Plain | None":
        """None where a tokenizer has another normaliser."""
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.normalizers import Sequence as Steps

        if not isinstance(fast.normalizer, BertNormalizer):
            return None
        without = copy.deepcopy(fast)
        without.normalizer = Steps([])
        added = tuple(token.content.lower() for token in fast.get_added_tokens_decoder().values())
        return cls(without, fast.normalizer.lowercase, added)

    def texts(self, texts: Sequence[Text]) -> list[Text] | None:
        """What `fast` makes the same tokens of; None where some text is not plain."""
        found: list[Text] = []
        for text in texts:
            lowered = tuple(map(str.lower, text))
            for part in lowered:
                if not part.isascii() or not part.isprintable():
                    return None
                if any(token in part for token in self.added):
                    return None
            found.append(lowered if self.is_lower else text)
        return found


@dataclass(frozen=True, slots=True)
class Padding:
    """How rows are made equally long."""

    pad_id: int
    multiple: int = 1
    """Widths are multiples of it."""
    on_left: bool = False
    """Whether padding stands before a row."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, multiple: int = 1) -> "Padding":
        """As the model was trained with."""
        return cls(tokenizer.pad_id, multiple, tokenizer.pads_left)

    def apply(self, rows: Sequence[Row]) -> tuple[Matrix, Matrix, Matrix]:
        """Ids, attention mask and token types as [rows, width]."""
        width = -(-max(map(len, rows)) // self.multiple) * self.multiple
        filled = np.empty((3, len(rows), width), dtype=np.int64)
        self.fill(rows, filled)
        return filled[0], filled[1], filled[2]

    def fill(self, rows: Sequence[Row], target: npt.NDArray[np.int64]) -> None:
        """Write ids, attention mask and token types into [3, rows, width].

        Rows beyond those given attend to one token of padding, so that their scores are numbers.
        """
        ids, mask, types = target
        ids[:], types[:] = self.pad_id, 0
        lengths = np.ones(len(mask), dtype=np.int64)
        lengths[: len(rows)] = [len(row) for row in rows]
        places = np.arange(mask.shape[1])
        if self.on_left:
            np.greater_equal(places, mask.shape[1] - lengths[:, None], out=mask)
        else:
            np.less(places, lengths[:, None], out=mask)
        inside = mask[: len(rows)].astype(bool)
        ids[: len(rows)][inside] = np.fromiter(
            itertools.chain.from_iterable(row.ids for row in rows), np.int64
        )
        if any(row.types for row in rows):
            types[: len(rows)][inside] = np.fromiter(
                itertools.chain.from_iterable(row.types for row in rows), np.int64
            )
