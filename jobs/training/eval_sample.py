"""A sample of evaluation rows that is saved with a model, with the model's scores in training.

The saved model must give the same scores: publishing checks it, and endpoints select their engine
by comparing with these scores.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs.training.data import encoding
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK, MASKED_IDS, TokenSet

FILE = "gate.jsonl"
TYPES = "token_type_ids"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One tokenised row with its label and the model's scores in training."""

    ids: Sequence[int]
    types: Sequence[int]
    """Token types: 0 in the first text, 1 in the second."""
    label: int
    """Index of the label; 0 for tasks without labels."""
    texts: Sequence[str] = ()
    """The text or the pair of texts; empty for tasks that keep only tokens."""
    scores: Sequence[float] = ()
    """The model's logits after the task's activation."""
    trained: Sequence[int] = ()
    """1 for tokens with a loss, else 0; empty if all tokens have one."""
    targets: Sequence[int] = ()
    """Tokens to predict at their own places; empty for tasks that predict the next token."""


def rows_of(
    tokens: TokenSet, scores: Sequence[Sequence[float]], texts: Sequence[Sequence[str]]
) -> list[SampleRow]:
    """Returns the sampled rows with their scores, and their texts if there are any.

    `scores` and `texts` belong to the rows of `encoding.sample`, in this order.
    """
    indices = encoding.sample(len(tokens)).tolist()
    all_texts = texts or [()] * len(indices)
    return [_row(tokens, *parts) for parts in zip(indices, scores, all_texts, strict=True)]


def write(rows: Sequence[SampleRow], folder: Path) -> None:
    """Writes rows into a model's folder."""
    lines = [json.dumps(asdict(row)) for row in rows]
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder: Path) -> tuple[SampleRow, ...]:
    """Returns the rows in a model's folder; empty if the model was saved without."""
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

    is_masked = MASKED_IDS in tokens.columns
    ids = column(MASKED_IDS if is_masked else INPUT_IDS)
    return SampleRow(
        ids=ids,
        types=column(TYPES) if TYPES in tokens.columns else [0] * len(ids),
        label=int(tokens.labels[index]),
        texts=tuple(texts),
        scores=tuple(scores),
        trained=column(LOSS_MASK) if LOSS_MASK in tokens.columns else (),
        targets=column(INPUT_IDS) if is_masked else (),
    )
