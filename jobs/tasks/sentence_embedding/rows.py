"""Reads, checks and tokenises the texts of pairs and triplets, each text by itself."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.sentence_embedding import scores
from jobs.tasks.sentence_embedding.task import EmbeddingData
from jobs.tasks.text_classification.rows import SAMPLE
from jobs.training.data import encoding, sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, sample
from jobs.training.data.tokens import INPUT_IDS

TYPES = "token_type_ids"
FURTHER = ("second", "third")
"""Prefixes of the columns of a row's further texts; those of the first have none."""


def prefixes(count: int) -> tuple[str, ...]:
    """Returns the prefix of the columns of each of `count` texts."""
    return ("", *(f"{name}_" for name in FURTHER[: count - 1]))


def encode(
    source: SourceSpec, data: EmbeddingData, tokenizer: Any, progress: Progress | None
) -> pa.Table:
    """Returns the token ids of each text of each row, and the scores as labels.

    Raises:
        DataError: if columns or values cannot be used, or a text has no token.
    """
    table = sources.read(source)
    columns = tuple(data.roles.values())
    named = columns if data.score is None else (*columns, data.score)
    table.require_columns(named, source.shown)
    found = [texts.read(table, name, source.shown, may_be_empty=False) for name in columns]
    rows = list(zip(*found, strict=True))
    labels = np.zeros(len(rows), dtype=np.float32)
    if data.score is not None:
        read = scores.read(table, data.score, source.shown, data.highest_score)
        labels = np.array(read, dtype=np.float32)
    encoded = _encode(rows, tokenizer, data.max_length, progress)
    _check_tokens(encoded, rows, source)
    made = lists(
        encoded,
        labels=pa.array(labels),
        label_names=(),
        sequences=[name for name in encoded if name.startswith(FURTHER)],
    )
    sampled = [rows[index] for index in sample(len(rows))]
    return made.replace_schema_metadata({**made.schema.metadata, SAMPLE: json.dumps(sampled)})


def _encode(
    rows: Sequence[tuple[str, ...]], tokenizer: Any, max_length: int, progress: Progress | None
) -> dict[str, list[list[int]]]:
    """Returns the columns of all texts; token types only if the tokenizer gives others than 0."""
    settings = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    encoded: dict[str, list[list[int]]] = {}
    with parallel_tokenizers():
        for chunk in in_chunks(rows, progress):
            for prefix, column in zip(
                prefixes(len(chunk[0])), zip(*chunk, strict=True), strict=True
            ):
                found = encoding.tokenise(tokenizer, list(column), **settings)
                for name in (INPUT_IDS, TYPES):
                    encoded.setdefault(f"{prefix}{name}", []).extend(found.get(name, ()))
    typed = [name for name in encoded if name.endswith(TYPES)]
    if not any(any(map(any, encoded[name])) for name in typed):
        return {name: column for name, column in encoded.items() if name not in typed}
    return encoded


def _check_tokens(
    encoded: dict[str, list[list[int]]], rows: Sequence[tuple[str, ...]], source: SourceSpec
) -> None:
    """Raises DataError for a text of which the tokenizer makes no token."""
    for number, prefix in enumerate(prefixes(len(rows[0]))):
        ids = encoded[f"{prefix}{INPUT_IDS}"]
        without = next((row for row, each in enumerate(ids) if not each), None)
        if without is not None:
            raise DataError(
                f"{source.shown} row {without + 1}: the base's tokenizer makes no token of"
                f" {shown(rows[without][number])}; remove the row"
            )
