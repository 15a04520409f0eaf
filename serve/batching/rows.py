"""Tokenised rows, and the arrays between them and engines."""

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
"""Fewest texts that are tokenised on all cores; fewer are faster on one."""
Matrix = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]
"""Places of tokens among all tokens of a batch, padding included."""
Logits = npt.NDArray[np.float32]
PendingBatch = Callable[[], Logits]
"""Waits for a launched batch and returns its logits; a CPU engine computes them in this call."""
PendingScores = Callable[[], Logits | Sequence[Logits]]
"""Waits for a launched batch and returns its scores: [rows, labels], or an array [tokens, labels]
for each row."""


@dataclass(frozen=True, slots=True)
class Row:
    """The token ids of one input."""

    ids: Sequence[int]
    types: Sequence[int]
    """Token type ids: 0 in the first text, 1 in the second; empty if all are 0."""
    is_cut: bool = False
    """True if the input was longer than the model's limit and was cut."""
    hidden: Sequence[int] = ()
    """Places of the hidden tokens, which a masked language model predicts."""
    originals: Sequence[int] = ()
    """The tokens that are hidden there; empty if they are not known."""

    def __len__(self) -> int:
        return len(self.ids)


Input = Text | Row
"""A text, or a row that is tokenised already."""


class Tokenizer:
    """The model's fast tokenizer without transformers' Python layer; it releases the GIL."""

    def __init__(self, folder: Path, max_length: int, *, is_spread: bool = False) -> None:
        """Reads the tokenizer.

        Args:
            folder: Folder of the model.
            max_length: Longest row in tokens; longer inputs are cut.
            is_spread: Tokenise `SPREAD_TEXTS` texts or more on all cores.
        """
        self._is_spread = is_spread
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the engine needs the cores
        import transformers  # here, because frontend workers receive a tokenizer and need it not

        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        self.pad_id = int(loaded.pad_token_id or 0)
        self.pads_left = loaded.padding_side == "left"
        self.input_names: tuple[str, ...] = tuple(loaded.model_input_names)
        self.unknown_id: int | None = loaded.unk_token_id
        self.max_length = max_length
        self._fast = loaded.backend_tokenizer
        self._fast.enable_truncation(max_length, direction=loaded.truncation_side)
        self._fast.no_padding()
        self._has_lone_types = any(self._fast.encode("a").type_ids)
        self._plain = Plain.of(self._fast)

    def on_one_core(self) -> "Tokenizer":
        """Returns a copy that uses one core, for one of several processes on a machine."""
        copied = copy.copy(self)
        copied._is_spread = False
        return copied

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decodes rows of token ids, without special tokens."""
        return list(self._fast.decode_batch([list(row) for row in rows]))

    @property
    def special_tokens(self) -> int:
        """Number of special tokens in the row of a text."""
        return int(self._fast.num_special_tokens_to_add(False))  # noqa: FBT003 - a library's

    def overlapping(self, stride: int) -> Any:
        """Returns a tokenizer that divides texts beyond the limit instead of cutting them.

        It is one of the library `tokenizers`; each window repeats `stride` tokens of the last.
        """
        copied = copy.deepcopy(self._fast)
        copied.enable_truncation(self.max_length, stride=stride, direction="right")
        return copied

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Returns the first character of each token of a text, and the one after its last."""
        return list(self._fast.encode(text).offsets)

    def rows(self, texts: Sequence[Text]) -> list[Row]:
        """Tokenises each text or pair, cut to the model's limit."""
        fast = self._fast
        if self._plain and (simple := self._plain.texts(texts)):
            fast, texts = self._plain.fast, simple
        inputs = [text[0] if len(text) == 1 else text for text in texts]
        if self._is_spread and len(texts) >= SPREAD_TEXTS:
            from jobs.training.data.encoding import parallel_tokenizers  # imports torch

            with parallel_tokenizers():
                encoded = fast.encode_batch_fast(inputs)
        else:
            encoded = fast.encode_batch_fast(inputs)
        has_types = self._has_lone_types or any(len(text) > 1 for text in texts)
        return [
            Row(row.ids, row.type_ids if has_types else (), bool(row.overflowing))
            for row in encoded
        ]


@dataclass(frozen=True, slots=True)
class Plain:
    """Skips BERT's normaliser for printable ASCII texts.

    The normaliser takes a third of the tokenizer's time, and its only effect on such texts is to
    lower their case.
    """

    fast: Any
    """The tokenizer without its normaliser."""
    is_lower: bool
    """True if the normaliser lowers the case."""
    added: tuple[str, ...]
    """Added tokens such as [SEP]; a text that contains one keeps the normaliser."""

    @classmethod
    def of(cls, fast: Any) -> "Plain | None":
        """Returns None if the tokenizer's normaliser is not BERT's."""
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.normalizers import Sequence as Steps

        if not isinstance(fast.normalizer, BertNormalizer):
            return None
        without = copy.deepcopy(fast)
        without.normalizer = Steps([])
        added = tuple(token.content.lower() for token in fast.get_added_tokens_decoder().values())
        return cls(without, fast.normalizer.lowercase, added)

    def texts(self, texts: Sequence[Text]) -> list[Text] | None:
        """Returns the texts as `fast` must receive them; None if any text needs the normaliser."""
        normalised: list[Text] = []
        for text in texts:
            lowered = tuple(map(str.lower, text))
            for part in lowered:
                if not part.isascii() or not part.isprintable():
                    return None
                if any(token in part for token in self.added):
                    return None
            normalised.append(lowered if self.is_lower else text)
        return normalised


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads the rows of a batch to one width."""

    pad_id: int
    multiple: int = 1
    """Every width is a multiple of this number of tokens."""
    on_left: bool = False
    """True to pad before a row's tokens instead of after them."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, multiple: int = 1) -> "Padding":
        """Returns the padding with which the model was trained."""
        return cls(tokenizer.pad_id, multiple, tokenizer.pads_left)

    def apply(self, rows: Sequence[Row]) -> tuple[Matrix, Matrix, Matrix]:
        """Returns token ids, attention mask and token types, [rows, width] each."""
        width = -(-max(map(len, rows)) // self.multiple) * self.multiple
        filled = np.empty((3, len(rows), width), dtype=np.int64)
        self.fill(rows, filled)
        return filled[0], filled[1], filled[2]

    def fill(self, rows: Sequence[Row], target: npt.NDArray[np.int64]) -> None:
        """Writes token ids, attention mask and token types into `target`, [3, rows, width].

        If `target` has more rows, these attend to one padding token, so that their scores are
        finite.
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

    def hidden(self, rows: Sequence[Row], width: int) -> Places:
        """Returns the places of the hidden tokens of rows that are padded to a width, [hidden]."""
        places = [
            number * width + (width - len(row) if self.on_left else 0) + at
            for number, row in enumerate(rows)
            for at in row.hidden
        ]
        return np.array(places, dtype=np.int64)
