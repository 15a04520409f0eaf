"""Rows from files or the hub, as token ids and label numbers."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray

from jobs.errors import DataError
from jobs.spec.data import FILE_FORMATS, DataSpec, SourceSpec
from jobs.training.batches import Indices


@dataclass(frozen=True, slots=True)
class Rows:
    """Texts and labels as they were written."""

    texts: tuple[tuple[str, ...], ...]
    """One tuple a row, with one text or a pair."""
    labels: tuple[str, ...]
    label_names: tuple[str, ...]
    """Names in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Token ids of every row, not padded."""

    features: dict[str, list[list[int]]]
    """`input_ids`, and `token_type_ids` where the model uses them."""
    labels: NDArray[np.int64]
    pad_token_id: int

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices, device: torch.device) -> dict[str, torch.Tensor]:
        """Rows padded to the longest: each tensor is (rows, tokens), labels are (rows,)."""
        rows = [self.features["input_ids"][index] for index in indices]
        width = max(len(row) for row in rows)
        tensors = {
            name: _pad([column[i] for i in indices], width, self._filler(name))
            for name, column in self.features.items()
        }
        tensors["attention_mask"] = _pad([[1] * len(row) for row in rows], width, 0)
        tensors["labels"] = torch.from_numpy(self.labels[indices])
        return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

    def shortest_first(self, count: int) -> Indices:
        """The first `count` rows ordered by length, so that neighbours need little padding."""
        lengths = [len(row) for row in self.features["input_ids"][:count]]
        return np.argsort(lengths, kind="stable")

    def _filler(self, name: str) -> int:
        return self.pad_token_id if name == "input_ids" else 0


def load_rows(source: SourceSpec, data: DataSpec) -> Rows:
    """Read all rows of a source; raises DataError when columns or values are not usable."""
    table = _read(source)
    for column in (*data.text_columns, data.label):
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            raise DataError(f"{source.path} has no column {column!r}; its columns are {known}")
    if not len(table):
        raise DataError(f"{source.path} has no rows")
    columns = [_texts(table[name], name, source.path) for name in data.text_columns]
    label_feature = table.features[data.label]
    names = getattr(label_feature, "names", None)
    raw = table[data.label]
    labels = [names[i] for i in raw] if names else _labels(raw, data.label, source.path)
    return Rows(
        texts=tuple(zip(*columns, strict=True)),
        labels=tuple(labels),
        label_names=tuple(names) if names else _sorted_names(labels),
    )


def encode(
    rows: Rows, tokenizer: Any, *, max_length: int, label_names: Sequence[str]
) -> EncodedRows:
    """Tokenise every row; raises DataError for a label that training rows do not have."""
    number = {name: index for index, name in enumerate(label_names)}
    unknown = sorted(set(rows.labels) - set(number))
    if unknown:
        known = ", ".join(label_names)
        raise DataError(f"label {unknown[0]!r} is not among the training labels ({known})")
    first = [texts[0] for texts in rows.texts]
    second = [texts[1] for texts in rows.texts] if len(rows.texts[0]) == 2 else None
    encoded = tokenizer(
        first, second, truncation=True, max_length=max_length, return_attention_mask=False
    )
    return EncodedRows(
        features=dict(encoded),
        labels=np.array([number[label] for label in rows.labels], dtype=np.int64),
        pad_token_id=tokenizer.pad_token_id or 0,
    )


def _read(source: SourceSpec) -> Any:
    datasets.disable_progress_bars()
    try:
        if not source.is_file:
            return datasets.load_dataset(source.path, source.name, split=source.split)
        suffix = Path(source.path).suffix.lower()
        options: dict[str, Any] = {}
        if suffix in (".csv", ".tsv"):
            options = {"keep_default_na": False}  # "None" and "NA" are words, not gaps
        if suffix == ".tsv":
            options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
        files = {"train": source.path}
        return datasets.load_dataset(
            FILE_FORMATS[suffix], data_files=files, split="train", **options
        )
    except FileNotFoundError:
        raise DataError(f"{source.path} does not exist") from None
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        if "corresponds to no data" in reason:
            raise DataError(f"{source.path} has no rows") from None
        raise DataError(f"{source.path} cannot be read: {reason}") from None


def _texts(values: Sequence[object], column: str, path: str) -> list[str]:
    for index, value in enumerate(values):
        if value is None or isinstance(value, list | dict):
            raise DataError(f"{path} row {index + 1}: column {column!r} holds {value!r}, not text")
    return [str(value) for value in values]


def _labels(values: Sequence[object], column: str, path: str) -> list[str]:
    for index, value in enumerate(values):
        if value is None or value == "" or isinstance(value, list | dict | float):
            raise DataError(
                f"{path} row {index + 1}: column {column!r} holds {value!r};"
                " a label is an integer or a string"
            )
    return [str(value) for value in values]


def _sorted_names(labels: Sequence[str]) -> tuple[str, ...]:
    names = set(labels)
    if all(name.lstrip("-").isdigit() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _pad(rows: list[list[int]], width: int, filler: int) -> torch.Tensor:
    padded = np.full((len(rows), width), filler, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)
