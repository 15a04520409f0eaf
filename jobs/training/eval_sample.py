"""Evaluation rows beside a saved model, with the scores that it had in training.

Whoever loads the model must get the same scores: publishing proves it, and endpoints choose what
runs the model by them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.training.data import encoding
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK, TokenSet

FILE = "gate.jsonl"
TYPES = "token_type_ids"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One tokenised row, what is right for it, and what the model made of it."""

    ids: Sequence[int]
    types: Sequence[int]
    """0 in the first text, 1 in the second."""
    label: int
    """Number of its label; 0 where rows have none."""
    texts: Sequence[str] = ()
    """As they were written, one or a pair; empty where tokens say it all."""
    scores: Sequence[float] = ()
    """What the task's activation makes of the model's logits."""
    trained: Sequence[int] = ()
    """1 for tokens that are trained; empty where all of the row is."""


def rows_of(
    tokens: TokenSet, scores: Sequence[Sequence[float]], texts: Sequence[Sequence[str]]
) -> list[SampleRow]:
    """The rows that are kept, with a score for each, and a text or pair if there are any."""
    numbers = encoding.sample(len(tokens)).tolist()
    return [
        _row(tokens, index, found, written)
        for index, found, written in zip(numbers, scores, texts or [()] * len(numbers), strict=True)
    ]


def write(rows: Sequence[SampleRow], folder: Path) -> None:
    """Write rows into a model's folder."""
    lines = [json.dumps(asdict(row)) for row in rows]
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder: Path) -> tuple[SampleRow, ...]:
    """The rows beside a model; none where it was saved without."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return tuple(SampleRow(**json.loads(line)) for line in text.splitlines())


def _row(tokens: TokenSet, index: int, scores: Sequence[float], texts: Sequence[str]) -> SampleRow:
    part = slice(int(tokens.offsets[index]), int(tokens.offsets[index + 1]))

    def column(name: str) -> list[int]:
        found: list[int] = tokens.columns[name][part].tolist()
        return found

    ids = column(INPUT_IDS)
    return SampleRow(
        ids=ids,
        types=column(TYPES) if TYPES in tokens.columns else [0] * len(ids),
        label=int(tokens.labels[index]),
        texts=tuple(texts),
        scores=tuple(scores),
        trained=column(LOSS_MASK) if LOSS_MASK in tokens.columns else (),
    )
