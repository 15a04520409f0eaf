"""Evaluation rows beside a saved classifier, by which an endpoint judges what runs it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from jobs.training.data.tokens import INPUT_IDS, TokenSet

FILE = "gate.jsonl"
ROWS = 256
"""Rows that are kept, spread evenly over the evaluation split."""
TYPES = "token_type_ids"


@dataclass(frozen=True, slots=True)
class GateRow:
    """One tokenised row and its class."""

    ids: Sequence[int]
    types: Sequence[int]
    """0 in the first text, 1 in the second."""
    label: int


def write(tokens: TokenSet, folder: Path) -> None:
    """Write a sample of evaluation rows into a model's folder."""
    chosen = np.unique(np.linspace(0, len(tokens) - 1, min(ROWS, len(tokens)), dtype=np.int64))
    lines = [json.dumps(asdict(_row(tokens, int(index)))) for index in chosen]
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder: Path) -> tuple[GateRow, ...]:
    """The rows beside a model; none where it was saved without."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return tuple(GateRow(**json.loads(line)) for line in text.splitlines())


def _row(tokens: TokenSet, index: int) -> GateRow:
    part = slice(int(tokens.offsets[index]), int(tokens.offsets[index + 1]))
    ids = tokens.columns[INPUT_IDS][part].tolist()
    types = tokens.columns[TYPES][part].tolist() if TYPES in tokens.columns else [0] * len(ids)
    return GateRow(ids, types, int(tokens.labels[index]))
