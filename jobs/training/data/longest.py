"""How long the longest training row is, cheaply enough to plan with."""

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
"""Bytes that planning reads at most; larger files are taken to hold rows of any length."""
TOKENISED = 64
"""Rows with the most characters whose tokens are counted."""


def longest_row(spec: JobSpec) -> int | None:
    """Tokens of the longest training row before it is cut; None when that is not known.

    Only tasks whose input is the texts of columns are looked at: packed rows are as long as
    max_length.
    """
    source = spec.data.train
    if not spec.data.text_columns or not source.is_local or not source.is_file:
        return None
    try:
        places = [place for path in source.paths for place in files.matching(path)]
        found = readers.read_files(places, LARGEST_FILES)
        if found is None:
            return None
        rows = _longest_texts(found, spec.data.text_columns)
    except (OSError, KeyError, DataError):
        return None  # training will say what is wrong with the file
    try:
        with as_model_error("the longest row cannot be found"):
            count = _counter(spec.model.base)
            return max(map(count, rows)) if rows else None
    except ModelError:
        return None  # training will say what is wrong with the tokenizer


def _longest_texts(table: Table, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    texts = [[str(value or "") for value in table.values(name)] for name in columns]
    return heapq.nlargest(TOKENISED, zip(*texts, strict=True), key=lambda row: sum(map(len, row)))


def _counter(base: str) -> Callable[[tuple[str, ...]], int]:
    path = _tokenizer_file(base)
    if path is None:
        return lambda texts: int(sum(map(len, texts)) / CHARACTERS_PER_TOKEN) + 1 + len(texts)
    import tokenizers  # planning a job without local rows need not pay for it

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
