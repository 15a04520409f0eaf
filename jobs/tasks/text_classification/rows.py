"""Reads, checks and tokenises texts with labels."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError, listed, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.text_classification.task import LabelledTexts
from jobs.training.data import encoding, labels, sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, sample
from jobs.training.data.table import Table
from jobs.training.data.tokens import INPUT_IDS

SAMPLE = b"sample_texts"


@dataclass(frozen=True, slots=True)
class Rows:
    """Texts and labels as they were written."""

    texts: tuple[tuple[str, ...], ...]
    """One tuple a row, with one text or a pair."""
    labels: tuple[str, ...]
    label_names: tuple[str, ...]
    """Names in the order of their numbers."""
    source: str = ""
    """Where they are from, for errors."""


def load_rows(source: SourceSpec, data: LabelledTexts) -> Rows:
    """Read all rows of a source; raises DataError when columns or values are not usable."""
    table = read_table(source, data)
    (column,) = data.label_columns
    found = labels.read(table, column, source.shown)
    return Rows(
        texts=read_texts(table, source, data),
        labels=tuple(found),
        label_names=table.class_names.get(column) or labels.in_order(found),
        source=source.shown,
    )


def read_table(source: SourceSpec, data: LabelledTexts) -> Table:
    """Returns all rows of a source; raises DataError if a column of the data section is missing."""
    table = sources.read(source)
    table.require_columns((*data.text_columns, *data.label_columns), source.shown)
    return table


def read_texts(
    table: Table, source: SourceSpec, data: LabelledTexts
) -> tuple[tuple[str, ...], ...]:
    """Returns one text or a pair for each row; raises DataError for values that are no texts."""
    columns = [texts.read(table, name, source.shown) for name in data.text_columns]
    return tuple(zip(*columns, strict=True))


def encode(
    rows: Rows,
    tokenizer: Any,
    *,
    max_length: int,
    label_names: Sequence[str],
    progress: Progress | None = None,
) -> pa.Table:
    """Token ids of every row, with label numbers and names.

    Raises DataError for a label that training rows do not have, and for a text without a token.
    """
    check_known(rows.labels, label_names, rows.source)
    number = {name: index for index, name in enumerate(label_names)}
    numbers = pa.array(np.array([number[label] for label in rows.labels], dtype=np.int64))
    encoded = encode_texts(rows.texts, rows.source, tokenizer, max_length, progress)
    return with_labels(encoded, rows.texts, numbers, label_names)


def check_known(found: Iterable[str], label_names: Sequence[str], source: str) -> None:
    """Raises DataError for a label that training rows do not have."""
    unknown = sorted(set(found) - set(label_names))
    if unknown:
        known = listed(label_names)
        raise DataError(
            f"{source}: label {shown(unknown[0])} is not among the training labels ({known})"
        )


def encode_texts(
    texts: Sequence[tuple[str, ...]],
    source: str,
    tokenizer: Any,
    max_length: int,
    progress: Progress | None,
) -> dict[str, list[list[int]]]:
    """Returns the token columns of every row; raises DataError for a text without a token."""
    encoded: dict[str, list[list[int]]] = {}
    with parallel_tokenizers():
        for pairs in in_chunks(texts, progress):
            for name, values in _tokenise(pairs, tokenizer, max_length).items():
                encoded.setdefault(name, []).extend(values)
    without = next((n for n, ids in enumerate(encoded[INPUT_IDS], 1) if not ids), None)
    if without is not None:
        raise DataError(
            f"{source} row {without}: the base's tokenizer makes no token of"
            f" {shown(texts[without - 1][0])}; remove the row"
        )
    return encoded


def with_labels(
    encoded: dict[str, list[list[int]]],
    texts: Sequence[tuple[str, ...]],
    labels: pa.Array,
    label_names: Sequence[str],
) -> pa.Table:
    """Returns a table of token columns and labels, with the texts of the sampled rows."""
    made = lists(encoded, labels=labels, label_names=label_names)
    sampled = [texts[index] for index in sample(len(texts))]
    return made.replace_schema_metadata({**made.schema.metadata, SAMPLE: json.dumps(sampled)})


def sample_texts(table: pa.Table) -> list[list[str]]:
    """Texts of the sampled rows."""
    found: list[list[str]] = json.loads(table.schema.metadata[SAMPLE])
    return found


def _tokenise(
    texts: Sequence[tuple[str, ...]], tokenizer: Any, max_length: int
) -> dict[str, list[list[int]]]:
    first = [pair[0] for pair in texts]
    second = [pair[1] for pair in texts] if len(texts[0]) == 2 else None
    settings = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    return encoding.tokenise(tokenizer, first, second, **settings)
