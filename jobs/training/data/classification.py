"""Texts with labels, for text-classification."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.training.data import labels, sources
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, sample

SAMPLE = b"sample_texts"


@dataclass(frozen=True, slots=True)
class Rows:
    """Texts and labels as they were written."""

    texts: tuple[tuple[str, ...], ...]
    """One tuple a row, with one text or a pair."""
    labels: tuple[str, ...]
    label_names: tuple[str, ...]
    """Names in the order of their numbers."""


def load_rows(source: SourceSpec, data: DataSpec) -> Rows:
    """Read all rows of a source; raises DataError when columns or values are not usable."""
    table = sources.read(source)
    table.require_columns((*data.text_columns, data.label), source.shown)
    columns = [_texts(table.values(name), name, source.shown) for name in data.text_columns]
    found = labels.read(table, data.label, source.shown)
    return Rows(
        texts=tuple(zip(*columns, strict=True)),
        labels=tuple(found),
        label_names=table.class_names.get(data.label) or labels.in_order(found),
    )


def encode(
    rows: Rows,
    tokenizer: Any,
    *,
    max_length: int,
    label_names: Sequence[str],
    progress: Progress | None = None,
) -> pa.Table:
    """Token ids of every row, with label numbers and names.

    Raises DataError for a label that training rows do not have.
    """
    number = {name: index for index, name in enumerate(label_names)}
    unknown = sorted(set(rows.labels) - set(number))
    if unknown:
        known = ", ".join(label_names)
        raise DataError(f"label {unknown[0]!r} is not among the training labels ({known})")
    encoded: dict[str, list[list[int]]] = {}
    with parallel_tokenizers():
        for texts in in_chunks(rows.texts, progress):
            for name, values in _tokenise(texts, tokenizer, max_length).items():
                encoded.setdefault(name, []).extend(values)
    numbers = pa.array(np.array([number[label] for label in rows.labels], dtype=np.int64))
    made = lists(encoded, labels=numbers, label_names=label_names)
    sampled = [rows.texts[index] for index in sample(len(rows.texts))]
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
    return dict(
        tokenizer(
            first, second, truncation=True, max_length=max_length, return_attention_mask=False
        )
    )


def _texts(values: Sequence[object], column: str, path: str) -> list[str]:
    return list(_checked_texts(values, column, path))


def _checked_texts(values: Sequence[object], column: str, path: str) -> Iterator[str]:
    for index, value in enumerate(values):
        if value is None or isinstance(value, list | dict):
            raise DataError(f"{path} row {index + 1}: column {column!r} holds {value!r}, not text")
        yield str(value)
