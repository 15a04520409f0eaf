"""Joins plain documents end to end, and cuts them into rows of one length."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.tasks.causal_lm.rows import ENDS, prompt_ids
from jobs.tasks.causal_lm.task import LanguageData
from jobs.training.data import sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, tokenise
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK

BEGINNING = 16
"""Tokens of a document that are continued to judge how varied a model writes."""


def encode(
    source: SourceSpec, data: LanguageData, tokenizer: Any, progress: Progress | None = None
) -> pa.Table:
    """Returns rows of max_length tokens, the last of which may be shorter, with a loss mask.

    Each row begins with the last token of the row before, so that every token but the very first
    is predicted exactly once.

    Raises:
        DataError: if a value is not text, the tokenizer has no end token, or there are fewer than
            two tokens.
    """
    table = sources.read(source)
    assert data.text is not None
    table.require_columns((data.text,), source.shown)
    if tokenizer.eos_token_id is None:
        raise DataError(
            "the base's tokenizer has no end token to put between documents; choose another base"
        )
    parts = []
    with parallel_tokenizers():
        for chunk in in_chunks(range(len(table)), progress):
            found = texts.read(table, data.text, source.shown, chunk[0], chunk[-1] + 1)
            parts.append(_joined([text for text in found if text], tokenizer))
    ids = np.concatenate([np.zeros(0, np.int64), *parts])
    if len(ids) < 2:
        raise DataError(f"{source.shown} holds no text in column {data.text!r}")
    step = data.max_length - 1
    starts = range(0, len(ids) - 1, step)
    rows = [ids[start : start + data.max_length].tolist() for start in starts]
    masks = [[0, *[1] * (len(row) - 1)] for row in rows]
    made = lists(
        {INPUT_IDS: rows, LOSS_MASK: masks},
        labels=pa.array(np.zeros(len(rows), np.int64)),
        label_names=(),
    )
    ends = json.dumps([tokenizer.eos_token_id])
    return made.replace_schema_metadata({**made.schema.metadata, ENDS: ends})


def beginnings(
    source: SourceSpec, data: LanguageData, tokenizer: Any, count: int
) -> list[list[int]]:
    """Returns the first tokens of the first documents."""
    table = sources.read(source)
    assert data.text is not None
    found = texts.read(table, data.text, source.shown, 0, min(count, len(table)))
    return [prompt_ids(text, tokenizer)[:BEGINNING] for text in found if text]


def _joined(found: Sequence[str], tokenizer: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the tokens of texts, with what the tokenizer puts before each, and an end token."""
    ends, ids = [tokenizer.eos_token_id], list[int]()
    if found:
        for row in tokenise(tokenizer, list(found))[INPUT_IDS]:
            ids += row if row[-1:] == ends else [*row, *ends]
    return np.asarray(ids, np.int64)
