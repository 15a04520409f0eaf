"""Reads, checks and tokenises texts with labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError, listed, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.data import encoding, labels, sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, sample
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


def load_rows(source: SourceSpec, data: ClassificationData) -> Rows:
    """Read all rows of a source; raises DataError when columns or values are not usable."""
    table = sources.read(source)
    table.require_columns((*data.text_columns, data.label), source.shown)
    columns = [texts.read(table, name, source.shown) for name in data.text_columns]
    found = labels.read(table, data.label, source.shown)
    return Rows(
        texts=tuple(zip(*columns, strict=True)),
        labels=tuple(found),
        label_names=table.class_names.get(data.label) or labels.in_order(found),
        source=source.shown,
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

    Raises DataError for a label that training rows do not have, and for a text without a token.
    """
    number = {name: index for index, name in enumerate(label_names)}
    unknown = sorted(set(rows.labels) - set(number))
    if unknown:
        known = listed(label_names)
        raise DataError(
            f"{rows.source}: label {shown(unknown[0])} is not among the training labels ({known})"
        )
    encoded: dict[str, list[list[int]]] = {}
    with parallel_tokenizers():
        for pairs in in_chunks(rows.texts, progress):
            for name, values in _tokenise(pairs, tokenizer, max_length).items():
                encoded.setdefault(name, []).extend(values)
    without = next((n for n, ids in enumerate(encoded[INPUT_IDS], 1) if not ids), None)
    if without is not None:
        raise DataError(
            f"{rows.source} row {without}: the base's tokenizer makes no token of"
            f" {shown(rows.texts[without - 1][0])}; remove the row"
        )
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
    settings = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    return encoding.tokenise(tokenizer, first, second, **settings)
