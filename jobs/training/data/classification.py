"""Texts with labels, for text-classification."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.training.data import sources
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, sample

SAMPLE = b"sample_texts"
INTEGER, NUMBER = re.compile(r"-?[0-9]{1,18}"), re.compile(r"-?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")
"""Labels that are all numbers, some with a fraction, are values to predict and not classes."""


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
    sources.require_columns(table, (*data.text_columns, data.label), source)
    columns = [_texts(table.values(name), name, source.shown) for name in data.text_columns]
    raw, names = table.values(data.label), table.class_names.get(data.label)
    labels = _labels([_name_of(value, names) for value in raw] if names else raw, data, source)
    return Rows(
        texts=tuple(zip(*columns, strict=True)),
        labels=tuple(labels),
        label_names=names or _sorted_names(labels),
    )


def _name_of(number: int | None, names: Sequence[str]) -> object:
    """Returns the name of a class, or None for a number without one, which `_labels` refuses."""
    return names[number] if number is not None and 0 <= number < len(names) else None


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
    labels = pa.array(np.array([number[label] for label in rows.labels], dtype=np.int64))
    made = lists(encoded, labels=labels, label_names=label_names)
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


def _labels(values: Sequence[object], data: DataSpec, source: SourceSpec) -> list[str]:
    are_numbers = all(NUMBER.fullmatch(str(value)) for value in values)
    for index, value in enumerate(values):
        is_fraction = are_numbers and not INTEGER.fullmatch(str(value))
        if value is None or value == "" or isinstance(value, list | dict | float) or is_fraction:
            raise DataError(
                f"{source.shown} row {index + 1}: column {data.label!r} holds {value!r};"
                " a label is an integer or a string"
            )
    return [str(value) for value in values]


def _sorted_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Names in the order of their numbers, if all are integers, else in that of their text."""
    names = sorted(set(labels))
    if all(INTEGER.fullmatch(name) for name in names):
        names.sort(key=int)
    return tuple(names)
