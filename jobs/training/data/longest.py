"""How long the longest training row is, cheaply enough to plan with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from jobs.errors import ModelError
from jobs.spec import JobSpec
from jobs.training.config import CHARACTERS_PER_TOKEN
from jobs.training.model import location as model_location

LARGEST_FILE = 256 * 2**20
"""Bytes that planning reads at most; longer files are taken to hold rows of any length."""
TOKENISED = 64
"""Rows with the most characters whose tokens are counted."""


def longest_row(spec: JobSpec) -> int | None:
    """Tokens of the longest training row, at most data.max_length; None when that is not known.

    Packed rows of causal-lm are as long as max_length, so theirs is not looked for.
    """
    source = spec.data.train
    if spec.model.task != "text-classification" or not source.is_local or not source.is_file:
        return None
    path = Path(source.path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            return None
        rows = _longest_texts(_read(path), spec.data.text_columns)
    except (OSError, KeyError, pa.ArrowException):
        return None  # training will say what is wrong with the file
    count = _counter(spec.model.base)
    return min(spec.data.max_length, max(map(count, rows))) if rows else None


def _read(path: Path) -> Any:
    match path.suffix.lower():
        case ".csv":
            options = pyarrow.csv.ParseOptions(newlines_in_values=True)
            return pyarrow.csv.read_csv(path, parse_options=options)
        case ".tsv":
            options = pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False)
            return pyarrow.csv.read_csv(path, parse_options=options)
        case ".parquet":
            return pyarrow.parquet.read_table(path)
        case _:
            return pyarrow.json.read_json(path)


def _longest_texts(table: Any, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    texts = [table.column(name).cast(pa.string()).fill_null("") for name in columns]
    sizes = pa.compute.utf8_length(texts[0])
    for column in texts[1:]:
        sizes = pa.compute.add(sizes, pa.compute.utf8_length(column))
    best = pa.compute.select_k_unstable(
        pa.table({"size": sizes}), k=min(TOKENISED, len(sizes)), sort_keys=[("size", "descending")]
    )
    return list(zip(*(column.take(best).to_pylist() for column in texts), strict=True))


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
