"""Reads, checks and tokenises prompts with two answers."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.tasks.causal_lm.rows import (
    CUT,
    ENDS,
    LEFT_OUT,
    Encoded,
    encode_conversations,
    encode_pairs,
    end_tokens_of,
)
from jobs.tasks.preference import answers
from jobs.tasks.preference.task import PreferenceData
from jobs.training.data import encoding, sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers
from jobs.training.data.table import Table
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK

REJECTED = "rejected_"
"""Prefix of the columns of the rejected answers; those of the chosen ones have none."""


def encode(
    source: SourceSpec, data: PreferenceData, tokenizer: Any, progress: Progress | None = None
) -> pa.Table:
    """Returns token ids and loss masks of both answers of every row, each after the prompt.

    Rows whose answers are equal, or of which one lies beyond max_length, are left out.

    Raises:
        DataError: if columns or values cannot be used, or nothing is left.
    """
    table = sources.read(source)
    table.require_columns(_columns(data), source.shown)
    rows: list[tuple[Encoded, Encoded]] = []
    with parallel_tokenizers():
        for chunk in in_chunks(range(len(table)), progress):
            rows += _encode_chunk(table, chunk, source, data, tokenizer)
    kept = [(_cut(chosen, data), _cut(rejected, data)) for chosen, rejected in rows]
    kept = [pair for pair in kept if _shows_preference(pair)]
    if not kept:
        raise DataError(
            f"{source.shown} has no row with two different answers within data.max_length"
            f" {data.max_length}; raise it"
        )
    columns = {
        f"{prefix}{name}": [pair[answer][part] for pair in kept]
        for answer, prefix in enumerate(("", REJECTED))
        for part, name in enumerate((INPUT_IDS, LOSS_MASK))
    }
    made = lists(
        columns,
        # the log-probabilities of the base take their place before the first step
        labels=encoding.vectors(np.zeros((len(kept), 2), np.float32)),
        label_names=(),
        sequences=[name for name in columns if name.startswith(REJECTED)],
    )
    is_chat = data.prompt is None
    ends = end_tokens_of([chosen for chosen, _ in rows], tokenizer, is_chat=is_chat)
    cut = sum(
        any(len(ids) > data.max_length for ids, _ in pair)
        for pair in rows
        if _shows_preference([_cut(each, data) for each in pair])
    )
    known = {
        LEFT_OUT: str(len(rows) - len(kept)),
        CUT: str(cut),
        ENDS: json.dumps(ends),
    }
    return made.replace_schema_metadata({**made.schema.metadata, **known})


def _columns(data: PreferenceData) -> tuple[str, ...]:
    return tuple(
        column
        for column in (data.prompt, data.messages, data.chosen, data.rejected)
        if column is not None
    )


def _shows_preference(pair: Sequence[Encoded]) -> bool:
    """Returns whether both answers have a token, and differ."""
    return all(any(mask[1:]) for _, mask in pair) and pair[0] != pair[1]


def _cut(row: Encoded, data: PreferenceData) -> Encoded:
    return row[0][: data.max_length], row[1][: data.max_length]


def _encode_chunk(
    table: Table, chunk: Sequence[int], source: SourceSpec, data: PreferenceData, tokenizer: Any
) -> list[tuple[Encoded, Encoded]]:
    start, stop = chunk[0], chunk[-1] + 1
    if data.prompt is None:
        chosen, rejected, first = answers.pairs(table, source, data, start, stop)
        place = source.shown, start
        both = [encode_conversations(each, tokenizer, place, first) for each in (chosen, rejected)]
        if any(len(rows) > 1 for rows in (*both[0], *both[1])):
            raise DataError(
                f"{source.shown}: the tokenizer's chat template rewrites earlier answers, so that"
                " conversations must end with the answer in which they part"
            )
        return [(one[0], other[0]) for one, other in zip(*both, strict=True)]
    asked, *answered = (
        texts.read(table, str(name), source.shown, start, stop, may_be_empty=False)
        for name in (data.prompt, data.chosen, data.rejected)
    )
    return list(zip(*(encode_pairs(asked, each, tokenizer) for each in answered), strict=True))
