"""What encoding for every task shares: all cores, progress, and the Arrow table that comes out."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from jobs.training.data.batches import Indices
from jobs.training.data.tokens import INPUT_IDS, TokenSet
from jobs.training.model.library import as_model_error

CHUNK_ROWS = 8192
"""Rows handed to the tokenizer at once, which spreads them over all cores."""
SAMPLED_ROWS = 256
"""Evaluation rows that are kept beside a model, spread evenly over their split."""
LABELS_KEY = b"label_names"

Progress = Callable[[int, int], None]
"""Told how many rows of how many are done."""
Item = TypeVar("Item")


@contextlib.contextmanager
def parallel_tokenizers() -> Iterator[None]:
    """Let fast tokenizers use every core, which is off elsewhere because processes are forked."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def tokenise(tokenizer: Any, *texts: Any, **settings: Any) -> dict[str, Any]:
    """What a tokenizer makes of texts; raises ModelError where it has no token for a character."""
    with as_model_error("the base's tokenizer cannot read the rows"):
        return dict(tokenizer(*texts, **settings))


def in_chunks(items: Sequence[Item], progress: Progress | None) -> Iterator[Sequence[Item]]:
    """The items in chunks; progress is told after each."""
    for start in range(0, len(items), CHUNK_ROWS):
        chunk = items[start : start + CHUNK_ROWS]
        yield chunk
        if progress:
            progress(start + len(chunk), len(items))


def lists(
    columns: dict[str, list[list[int]]], *, labels: pa.Array, label_names: Sequence[str]
) -> pa.Table:
    """A table of token columns, `input_ids` as int32 and the others as int8, and `labels`."""
    arrays = {
        name: pa.array(rows, pa.large_list(pa.int32() if name == INPUT_IDS else pa.int8()))
        for name, rows in columns.items()
    }
    made = pa.table({**arrays, "labels": labels})
    return made.replace_schema_metadata({LABELS_KEY: json.dumps(list(label_names))})


def sample(rows: int) -> Indices:
    """Returns the numbers of the evaluation rows, of `rows` in all, that are saved with a model."""
    count = min(SAMPLED_ROWS, rows)
    return np.unique(np.linspace(0, rows - 1, count, dtype=np.int64))


def label_names(table: pa.Table) -> tuple[str, ...]:
    """The class names that a table was made with; empty for causal-lm."""
    return tuple(json.loads(table.schema.metadata[LABELS_KEY]))


def token_set(table: pa.Table, tokenizer: Any) -> TokenSet:
    """The columns of a table as flat arrays, which share the mapped file's memory."""
    columns = {}
    offsets = np.zeros(1, np.int64)
    for name in table.column_names:
        if name != "labels":
            array = table[name].combine_chunks()
            offsets = array.offsets.to_numpy()
            columns[name] = array.values.to_numpy()
    return TokenSet(columns, offsets, table["labels"].to_numpy(), tokenizer.pad_token_id)
