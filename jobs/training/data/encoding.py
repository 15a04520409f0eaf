"""Tokenising for every task: on all cores, with progress, into an Arrow table."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from jobs.training.data.batches import Indices
from jobs.training.data.tokens import INPUT_IDS, Ragged, TokenSet
from jobs.training.model.library import as_model_error

CHUNK_ROWS = 8192
"""Rows of one call of the tokenizer, which tokenises them on all cores."""
SAMPLED_ROWS = 256
"""Evaluation rows that are saved with a model, spread evenly over their split."""
LABELS_KEY, FILLERS_KEY = b"label_names", b"fillers"

Progress = Callable[[int, int], None]
"""Called with the number of tokenised rows and of all rows."""
Item = TypeVar("Item")


@contextlib.contextmanager
def parallel_tokenizers() -> Iterator[None]:
    """Lets fast tokenizers use every core; elsewhere this is off, because processes are forked."""
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
    """Calls a tokenizer and returns its columns.

    Raises:
        ModelError: if the tokenizer fails, for example without a token for a character.
    """
    with as_model_error("the base's tokenizer cannot read the rows"):
        return dict(tokenizer(*texts, **settings))


def in_chunks(items: Sequence[Item], progress: Progress | None) -> Iterator[Sequence[Item]]:
    """Yields the items in chunks, and reports the progress after each chunk."""
    for start in range(0, len(items), CHUNK_ROWS):
        chunk = items[start : start + CHUNK_ROWS]
        yield chunk
        if progress:
            progress(start + len(chunk), len(items))


def lists(
    columns: Mapping[str, Sequence[Sequence[int]]],
    *,
    labels: pa.Array,
    label_names: Sequence[str],
    fillers: Mapping[str, int] | None = None,
) -> pa.Table:
    """Returns a table of `input_ids` as int32, other token columns as int8, and `labels`.

    The columns named in `fillers` have lengths of their own, are int32, and are padded with that
    number.
    """
    fillers = fillers or {}
    wide = {INPUT_IDS, *fillers}
    arrays = {
        name: pa.array(rows, pa.large_list(pa.int32() if name in wide else pa.int8()))
        for name, rows in columns.items()
    }
    made = pa.table({**arrays, "labels": labels})
    return made.replace_schema_metadata(
        {LABELS_KEY: json.dumps(list(label_names)), FILLERS_KEY: json.dumps(fillers)}
    )


def sample(rows: int) -> Indices:
    """Returns the indices of the evaluation rows that are saved with a model, of `rows` rows."""
    count = min(SAMPLED_ROWS, rows)
    return np.unique(np.linspace(0, rows - 1, count, dtype=np.int64))


def label_names(table: pa.Table) -> tuple[str, ...]:
    """Returns the class names of a table; empty for tasks without labels."""
    return tuple(json.loads(table.schema.metadata[LABELS_KEY]))


def token_set(table: pa.Table, tokenizer: Any) -> TokenSet:
    """Returns the columns of a table as flat arrays, which share the memory-mapped file."""
    fillers = json.loads(table.schema.metadata.get(FILLERS_KEY, b"{}"))
    columns, ragged = {}, {}
    offsets = np.zeros(1, np.int64)
    for name in table.column_names:
        if name == "labels":
            continue
        array = table[name].combine_chunks()
        values, places = array.values.to_numpy(), array.offsets.to_numpy()
        if name in fillers:
            ragged[name] = Ragged(values, places, fillers[name])
        else:
            columns[name], offsets = values, places
    labels = table["labels"].to_numpy()
    return TokenSet(columns, offsets, labels, tokenizer.pad_token_id, ragged=ragged)
