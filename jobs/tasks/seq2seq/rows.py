"""Reads, checks and tokenises sources with their targets."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.seq2seq import references
from jobs.tasks.seq2seq.task import Seq2SeqData
from jobs.tasks.text_classification.rows import SAMPLE
from jobs.training.data import sources, texts
from jobs.training.data.encoding import (
    Progress,
    in_chunks,
    lists,
    parallel_tokenizers,
    sample,
    tokenise,
)
from jobs.training.data.table import Table
from jobs.training.data.tokens import IGNORED, INPUT_IDS, TARGET_IDS

ENDS = b"end_tokens"
WORD = "a"
"""A target whose tokens show which ones the tokenizer adds."""
Columns = dict[str, list[list[int]]]


def encode(
    source: SourceSpec, data: Seq2SeqData, tokenizer: Any, progress: Progress | None = None
) -> pa.Table:
    """Tokenises every row; targets are a ragged column that ends with the end token.

    Raises:
        DataError: if columns or values cannot be used, or a source has no token.
    """
    assert data.source is not None
    assert data.target is not None
    table = sources.read(source)
    table.require_columns((data.source, data.target), source.shown)
    if source == data.train:
        references.only(_references(table, source, data), data.target, source.shown)
    end = end_token(tokenizer)
    columns: Columns = {}
    with parallel_tokenizers():
        for chunk in in_chunks(range(len(table)), progress):
            for name, values in _tokenise(table, chunk, source, data, tokenizer).items():
                columns.setdefault(name, []).extend(values)
    without = next((row for row, ids in enumerate(columns[INPUT_IDS], 1) if not ids), None)
    if without is not None:
        text = shown(table.values(data.source, without - 1, without)[0])
        raise DataError(
            f"{source.shown} row {without}: the base's tokenizer makes no token of {text}; remove"
            " the row"
        )
    numbers = pa.array(np.zeros(len(table), np.int64))
    made = lists(columns, labels=numbers, label_names=(), fillers={TARGET_IDS: IGNORED})
    found = [table.values(data.source, row, row + 1)[0] for row in sample(len(table)).tolist()]
    sampled = [[f"{data.prefix}{text}"] for text in found]
    ends = [] if end is None else [end]
    return made.replace_schema_metadata(
        {**made.schema.metadata, SAMPLE: json.dumps(sampled), ENDS: json.dumps(ends)}
    )


def end_tokens(table: pa.Table) -> tuple[int, ...]:
    """Returns the token that ends a target; empty if the tokenizer has none."""
    return tuple(json.loads(table.schema.metadata[ENDS]))


@functools.lru_cache(maxsize=1)
def references_of(source: SourceSpec, data: Seq2SeqData) -> list[list[str]]:
    """Returns the references of each row of a source, as they were written.

    They are kept for the next evaluation, which would have to read the whole source again.
    """
    return _references(sources.read(source), source, data)


def end_token(tokenizer: Any) -> int | None:
    """Returns the token that ends a target: the first special one behind the words."""
    special = special_tokens(tokenizer)
    ids = tokenise(tokenizer, text_target=WORD)[INPUT_IDS]
    last = max((place for place, token in enumerate(ids) if token not in special), default=-1)
    after: list[int] = [*ids[last + 1 :], tokenizer.eos_token_id]
    return after[0]


def special_tokens(tokenizer: Any) -> set[int]:
    """Returns the ids of tokens that stand for no text, such as language codes."""
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}


def _references(table: Table, source: SourceSpec, data: Seq2SeqData) -> list[list[str]]:
    return references.read(table, str(data.target), source.shown)


def _tokenise(
    table: Table, chunk: Sequence[int], source: SourceSpec, data: Seq2SeqData, tokenizer: Any
) -> Columns:
    start, stop = chunk[0], chunk[-1] + 1
    read = texts.read(table, str(data.source), source.shown, start, stop, may_be_empty=False)
    targets = references.read(table, str(data.target), source.shown, start, stop)
    settings = {"truncation": True, "return_attention_mask": False}
    given = [f"{data.prefix}{text}" for text in read]
    columns: Columns = tokenise(tokenizer, given, max_length=data.max_length, **settings)
    wanted = [several[0] for several in targets]
    length, special = data.max_target_length, special_tokens(tokenizer)
    found = tokenise(tokenizer, text_target=wanted, max_length=length, **settings)[INPUT_IDS]
    return {**columns, TARGET_IDS: [_ended(ids, tokenizer, special, length) for ids in found]}


def _ended(ids: list[int], tokenizer: Any, special: set[int], length: int) -> list[int]:
    """Returns a target with the end token, for tokenizers that add none."""
    end = tokenizer.eos_token_id
    if end is None or (ids and ids[-1] in special):
        return ids
    return [*ids[: length - 1], end]
