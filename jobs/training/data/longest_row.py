"""Measures the longest training row, cheaply enough for planning."""

import heapq
from collections.abc import Callable
from pathlib import Path

from jobs.errors import DataError, ModelError
from jobs.spec import JobSpec
from jobs.storage import files
from jobs.training.config import CHARACTERS_PER_TOKEN
from jobs.training.data import readers
from jobs.training.data.table import Table
from jobs.training.model import location as model_location
from jobs.training.model.library import as_model_error

LARGEST_FILES = 64 * 2**20
"""Most bytes that planning reads; the longest row of larger files stays unknown."""
TOKENISED = 64
"""Number of rows, those with the most characters, whose tokens are counted."""


def longest_row(spec: JobSpec) -> int | None:
    """Returns the tokens of the longest training row before truncation; None if that is unknown.

    It is known for local files and tasks whose input is columns of text. Rows of other tasks are
    packed, so they have max_length tokens.
    """
    return _longest(spec, spec.data.sequences, spec.data.text_prefix)


def longest_target(spec: JobSpec) -> int | None:
    """Returns the tokens of the longest target before truncation; None if there is none known."""
    columns = spec.data.target_columns
    return _longest(spec, (columns,) if columns else (), "")


def _longest(spec: JobSpec, sequences: tuple[tuple[str, ...], ...], prefix: str) -> int | None:
    source = spec.data.train
    if not sequences or not source.is_local or not source.is_file:
        return None
    try:
        places = [place for path in source.paths for place in files.matching(path)]
        found = readers.read_files(places, LARGEST_FILES)
        if found is None:
            return None
        rows = [row for each in sequences for row in _longest_texts(found, each, prefix)]
    except (OSError, KeyError, DataError):
        return None  # training reports the error in the file
    try:
        with as_model_error("the longest row cannot be found"):
            count = _counter(spec.model.base)
            return max(map(count, rows)) if rows else None
    except ModelError:
        return None  # training reports the error of the tokenizer


def _longest_texts(table: Table, columns: tuple[str, ...], prefix: str) -> list[tuple[str, ...]]:
    texts = [[f"{prefix}{value or ''}" for value in table.values(name)] for name in columns]
    return heapq.nlargest(TOKENISED, zip(*texts, strict=True), key=lambda row: sum(map(len, row)))


def _counter(base: str) -> Callable[[tuple[str, ...]], int]:
    path = _tokenizer_file(base)
    if path is None:
        return lambda texts: int(sum(map(len, texts)) / CHARACTERS_PER_TOKEN) + 1 + len(texts)
    import tokenizers  # slow, and planning a job without local rows does not need it

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: len(tokenizer.encode(texts[0], *texts[1:]).ids)  # type: ignore[arg-type]


def _tokenizer_file(base: str) -> Path | None:
    try:
        location = model_location.locate(base, has_weights=False)
    except ModelError:
        return None
    path = location / "tokenizer.json" if isinstance(location, Path) else None
    return path if path and path.is_file() else None
