"""Reads, checks and tokenises the texts of pairs and triplets, each text by itself."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
    """Returns the token ids of each text of each row, and as labels the scores, (rows,).

    Without scores, the labels are numbers of the texts, (rows, texts): equal texts have the same.

    Raises:
        DataError: if columns or values cannot be used, or a text has no token.
    """
    table = sources.read(source)
    columns = tuple(data.roles.values())
    named = columns if data.score is None else (*columns, data.score)
    table.require_columns(named, source.shown)
    found = [texts.read(table, name, source.shown, may_be_empty=False) for name in columns]
    rows = list(zip(*found, strict=True))
    if data.score is None:
        labels = encoding.vectors(numbers_of(rows))
    else:
        read = scores.read(table, data.score, source.shown, data.highest_score)
        labels = pa.array(np.array(read, dtype=np.float32))
    encoded = _encode(rows, tokenizer, data.max_length, progress)
    _check_tokens(encoded, rows, source)
    made = lists(
        encoded,
        labels=labels,
        label_names=(),
        sequences=[name for name in encoded if name.startswith(FURTHER)],
    )
    sampled = [rows[index] for index in sample(len(rows))]
    return made.replace_schema_metadata({**made.schema.metadata, SAMPLE: json.dumps(sampled)})


def numbers_of(rows: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Returns a number for each text, (rows, texts), by the order in which texts first occur."""
    numbers: dict[str, int] = {}
    return np.array([[numbers.setdefault(text, len(numbers)) for text in row] for row in rows])


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
