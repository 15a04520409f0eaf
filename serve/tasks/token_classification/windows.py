"""Divides texts into windows of the model's limit, and joins the scores of their tokens again.

Neighbouring windows overlap. A token in both counts in the one where it has more text around it:
the first half of the overlap in the earlier window, the second half in the later one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.tasks.token_classification.words import (
    Entity,
    Offsets,
    Word,
    WordRule,
    entities_of,
    groups_of,
    without_spaces,
)
from serve.batching.rows import Logits, Row, Tokenizer

OVERLAP = 0.25
"""Share of a window that the next one repeats."""


@dataclass(frozen=True, slots=True)
class WindowedText:
    """A text as rows for the engine, and which of their tokens it is read from."""

    text: str
    rows: Sequence[Row]
    """One for each window; empty for a text without tokens."""
    places: Sequence[Sequence[int]]
    """For each row the places of the tokens that count, without special ones."""
    offsets: Sequence[Offsets]
    """Characters of all tokens that count."""
    begins: Sequence[bool]
    """Whether each of these tokens begins a word."""

    def entities(self, scores: Sequence[Logits], labels: Sequence[str]) -> list[Entity]:
        """Returns the entities of the text.

        Args:
            scores: Probabilities of each row's tokens, [tokens, labels].
            labels: Names of the labels, in BIO.
        """
        if not self.rows:
            return []
        counted = np.concatenate(
            [row[list(places)] for row, places in zip(scores, self.places, strict=True)]
        )
        best, most = counted.argmax(axis=1).tolist(), counted.max(axis=1).tolist()
        words = [
            Word(
                labels[best[group[0]]],
                most[group[0]],
                self.offsets[group[0]][0],
                self.offsets[group[-1]][1],
            )
            for group in groups_of(self.begins)
        ]
        return entities_of(words)


class Windows:
    """Tokenises texts into windows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        room = tokenizer.max_length - tokenizer.special_tokens
        self._stride = int(OVERLAP * room)
        self._fast = tokenizer.overlapping(self._stride)
        self._rule = WordRule.of(self._fast, tokenizer.unknown_id)

    def of(self, texts: Sequence[str]) -> list[WindowedText]:
        """Returns the windows of each text."""
        encoded = self._fast.encode_batch(list(texts))
        return [self._windowed(text, one) for text, one in zip(texts, encoded, strict=True)]

    def _windowed(self, text: str, encoding: Any) -> WindowedText:
        windows = [encoding, *encoding.overflowing]
        rows, places = list[Row](), list[list[int]]()
        offsets, begins = list[Offsets](), list[bool]()
        for number, window in enumerate(windows):
            ids, names, where = window.ids, window.tokens, window.offsets
            counted = []
            for at in self._counted(window, number, len(windows)):
                start, end = without_spaces(text, where[at])
                if start < end:
                    counted.append(at)
                    offsets.append((start, end))
                    begins.append(self._rule.begins_word(text, ids[at], names[at], (start, end)))
            if ids:
                rows.append(Row(ids, window.type_ids if any(window.type_ids) else ()))
                places.append(counted)
        if not offsets:
            return WindowedText(text, (), (), (), ())
        return WindowedText(text, rows, places, offsets, begins)

    def _counted(self, window: Any, number: int, count: int) -> list[int]:
        """Returns the places of the tokens that are read from a window."""
        real = [at for at, is_special in enumerate(window.special_tokens_mask) if not is_special]
        first = self._stride // 2 if number else 0
        last = len(real) - (self._stride - self._stride // 2 if number < count - 1 else 0)
        return real[first:last]
