"""Tokenising for every task: on all cores, with progress, into an Arrow table."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.training.data.batches import Indices
from jobs.training.data.tokens import INPUT_IDS, TOKEN_LABELS, Ragged, TokenSet
from jobs.training.model.library import as_model_error

CHUNK_ROWS = 8192
"""Rows of one call of the tokenizer, which tokenises them on all cores."""
SAMPLED_ROWS = 256
"""Evaluation rows that are saved with a model, spread evenly over their split."""
LABELS_KEY, SEQUENCES_KEY, FILLERS_KEY = b"label_names", b"sequences", b"fillers"
MOST_INT8 = 127
"""Most labels whose numbers fit into int8."""

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
    sequences: Sequence[str] = (),
    fillers: Mapping[str, int] | None = None,
) -> pa.Table:
    """Returns a table of ids as int32, other token columns as int8, and `labels`.

    The names of columns with ids end in `input_ids`; labels of tokens are int16 if there are more
    than 127. `sequences` are the columns of further sequences of tokens, with lengths of their own.
    Columns named in `fillers` have lengths of their own too, are int32, and are padded with that
    number.
    """
    fillers = fillers or {}
    label_type = pa.int16() if len(label_names) > MOST_INT8 else pa.int8()
    kinds = {TOKEN_LABELS: label_type}
    kinds |= {name: pa.int32() for name in columns if name.endswith(INPUT_IDS) or name in fillers}
    arrays = {
        name: pa.array(rows, pa.large_list(kinds.get(name, pa.int8())))
        for name, rows in columns.items()
    }
    made = pa.table({**arrays, "labels": labels})
    known = {LABELS_KEY: list(label_names), SEQUENCES_KEY: list(sequences), FILLERS_KEY: fillers}
    return made.replace_schema_metadata({key: json.dumps(each) for key, each in known.items()})


def sample(rows: int) -> Indices:
    """Returns the indices of the evaluation rows that are saved with a model, of `rows` rows."""
    count = min(SAMPLED_ROWS, rows)
    return np.unique(np.linspace(0, rows - 1, count, dtype=np.int64))


def label_names(table: pa.Table) -> tuple[str, ...]:
    """Returns the class names of a table; empty for tasks without labels."""
    return tuple(json.loads(table.schema.metadata[LABELS_KEY]))


def token_set(table: pa.Table, tokenizer: Any) -> TokenSet:
    """Returns the columns of a table as flat arrays, which share the memory-mapped file."""
    columns, ragged = {}, {}
    offsets, pad = np.zeros(1, np.int64), tokenizer.pad_token_id
    known = table.schema.metadata or {}
    sequences = json.loads(known.get(SEQUENCES_KEY, b"[]"))
    fillers = json.loads(known.get(FILLERS_KEY, b"{}"))
    for name in table.column_names:
        if name == "labels":
            continue
        array = table[name].combine_chunks()
        values, own_offsets = array.values.to_numpy(), array.offsets.to_numpy()
        if name in sequences:
            filler = pad if name.endswith(INPUT_IDS) else 0
            ragged[name] = Ragged(values, own_offsets, filler, is_sequence=True)
        elif name in fillers:
            ragged[name] = Ragged(values, own_offsets, fillers[name])
        else:
            columns[name], offsets = values, own_offsets
    return TokenSet(columns, offsets, labels(table["labels"]), pad, ragged=ragged)


def vectors(values: NDArray[np.generic]) -> pa.Array:
    """Returns the `labels` of a table whose rows have several, from (rows, n)."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def labels(column: pa.ChunkedArray) -> NDArray[np.generic]:
    """Returns labels, (rows,), or (rows, n) for those of `vectors`."""
    if not pa.types.is_fixed_size_list(column.type):
        found: NDArray[np.generic] = column.to_numpy()
        return found
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(column), column.type.list_size)
