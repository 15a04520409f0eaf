"""A sample of evaluation rows that is saved with a model, with the model's scores in training.

The saved model must give the same scores: publishing checks it, and endpoints select their engine
by comparing with these scores.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.training.data import encoding
from jobs.training.data.tokens import (
    IGNORED,
    INPUT_IDS,
    LOSS_MASK,
    MASKED_IDS,
    TARGET_IDS,
    TOKEN_LABELS,
    TokenSet,
)

FILE = "gate.jsonl"
TYPES = "token_type_ids"
TINY = 1e-12
"""Least length of a vector."""
Vectors = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One tokenised row with its label and the model's scores in training."""

    ids: Sequence[int]
    types: Sequence[int]
    """Token types: 0 in the first text, 1 in the second."""
    label: int | float | Sequence[float]
    """Index of the label, or the numbers that the task learns of the row; 0 without labels."""
    texts: Sequence[str] = ()
    """The text or the pair of texts, or the texts of a row that are read one by one, of which
    `ids` are the first; empty for tasks that keep only tokens."""
    scores: Sequence[float] | Sequence[Sequence[float]] = ()
    """The model's logits after the task's activation; for a task with scores for each token, those
    of the first labelled tokens."""
    trained: Sequence[int] = ()
    """1 for tokens with a loss, else 0; empty if all tokens have one."""
    token_labels: Sequence[int] = ()
    """Index of each token's label, IGNORED for tokens without one; empty for other tasks."""
    targets: Sequence[int] = ()
    """Tokens that the decoder writes, which alone have a loss then; empty without a decoder."""
    originals: Sequence[int] = ()
    """Tokens to predict at their own places; empty for tasks that predict the next token."""


def rows_of(
    tokens: TokenSet, scores: Sequence[Any], texts: Sequence[Sequence[str]]
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


def similarities(vectors: Vectors, reference: Vectors) -> Vectors:
    """Returns what vectors of rows say of these rows, (rows, references + 1).

    It is the cosine with each vector of `reference`, and the length relative to that of the row's
    own reference. Both have a row for each row of the sample, in its order; `vectors` may have
    fewer.
    """
    lengths = [np.maximum(np.linalg.norm(each, axis=1), TINY) for each in (vectors, reference)]
    cosines = (vectors / lengths[0][:, None]) @ (reference / lengths[1][:, None]).T
    ratios = lengths[0] / lengths[1][: len(vectors)]
    return np.concatenate([cosines, ratios[:, None]], axis=1)


def spread_of(rows: Sequence[SampleRow]) -> tuple[float, ...]:
    """Returns the unit in which differences of each score count.

    It is the standard deviation of the labels where these are the numbers that the scores are of,
    as in a regression, and 1 otherwise.
    """
    scores = np.array([row.scores for row in rows])
    labels = np.array([row.label for row in rows], dtype=np.float64)
    labels = labels if labels.ndim == 2 else labels[:, None]
    if labels.shape != scores.shape:
        return tuple(1.0 for _ in rows[0].scores)
    deviations: list[float] = labels.std(axis=0).tolist()
    return tuple(value or 1.0 for value in deviations)


def scored_tokens(row: SampleRow) -> list[int]:
    """Returns the places of the tokens that `scores` has; of all labelled ones if it is empty."""
    labelled = [at for at, label in enumerate(row.token_labels) if label != IGNORED]
    return labelled[: len(row.scores)] if row.scores else labelled


def _row(tokens: TokenSet, index: int, scores: Sequence[Any], texts: Sequence[str]) -> SampleRow:
    part = slice(int(tokens.offsets[index]), int(tokens.offsets[index + 1]))

    def column(name: str) -> list[int]:
        found: list[int] = tokens.columns[name][part].tolist()
        return found

    is_masked = MASKED_IDS in tokens.columns
    ids = column(MASKED_IDS if is_masked else INPUT_IDS)
    return SampleRow(
        ids=ids,
        types=column(TYPES) if TYPES in tokens.columns else [0] * len(ids),
        label=tokens.labels[index].tolist(),
        texts=tuple(texts),
        scores=tuple(scores),
        trained=column(LOSS_MASK) if LOSS_MASK in tokens.columns else (),
        token_labels=column(TOKEN_LABELS) if TOKEN_LABELS in tokens.columns else (),
        targets=_targets(tokens, index),
        originals=column(INPUT_IDS) if is_masked else (),
    )


def _targets(tokens: TokenSet, index: int) -> list[int]:
    if TARGET_IDS not in tokens.ragged:
        return []
    targets = tokens.ragged[TARGET_IDS]
    found: list[int] = targets.values[targets.offsets[index] : targets.offsets[index + 1]].tolist()
    return found
