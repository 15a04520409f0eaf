"""Joins documents, cuts them into rows, and draws the tokens that evaluations predict."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.tasks.masked_lm.task import MaskedData
from jobs.training.data import sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, tokenise
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK, MASKED_IDS

MASKABLE = "maskable"
"""1 for tokens of a document, 0 for special tokens, which are never predicted."""
HIDDEN, REPLACED = 0.8, 0.1
"""Shares of the predicted tokens that are hidden, and that are replaced by a random token.

Source: Devlin et al., 2019, "BERT: Pre-training of deep bidirectional transformers"."""
SEED = 20261127
"""Seed of the tokens that evaluations predict, the same in every job."""

Tokens = NDArray[np.int64]


def encode(
    source: SourceSpec, data: MaskedData, tokenizer: Any, progress: Progress | None = None
) -> pa.Table:
    """Returns rows of at most max_length tokens, between the special tokens of a single text.

    Documents follow each other with a separator between them. `loss_mask` and `masked_ids` are what
    an evaluation predicts and reads, drawn from the row's number; training draws anew in each step,
    as many tokens of each row. `labels` is the number of the mask token.

    Raises:
        DataError: if a value is not text, the tokenizer has no mask token, or there is no text.
    """
    table = sources.read(source)
    table.require_columns((data.text,), source.shown)
    if tokenizer.mask_token_id is None:
        raise DataError(
            "the base's tokenizer has no mask token; choose an encoder, such as BERT or RoBERTa"
        )
    stream: list[int] = []
    between = _separator(tokenizer)
    with parallel_tokenizers():
        for chunk in in_chunks(range(len(table)), progress):
            found = texts.read(table, data.text, source.shown, chunk[0], chunk[-1] + 1)
            known = [text for text in found if text]
            if known:
                for ids in tokenise(tokenizer, known, add_special_tokens=False)[INPUT_IDS]:
                    stream += [*ids, *between]
    if len(stream) <= len(between):
        raise DataError(f"{source.shown} holds no text in column {data.text!r}")
    rows = _rows(stream[: len(stream) - len(between)], data.max_length, tokenizer)
    return _table(rows, data, tokenizer)


def _rows(stream: list[int], length: int, tokenizer: Any) -> list[Tokens]:
    before, after = _around(tokenizer)
    room = length - len(before) - len(after)
    if room < 1:
        raise DataError(f"data.max_length {length} leaves no room beside special tokens; raise it")
    return [
        np.asarray([*before, *stream[start : start + room], *after], np.int64)
        for start in range(0, len(stream), room)
    ]


def _table(rows: list[Tokens], data: MaskedData, tokenizer: Any) -> pa.Table:
    special = np.asarray(sorted(tokenizer.all_special_ids))
    columns: dict[str, list[list[int]]] = {INPUT_IDS: [], LOSS_MASK: [], MASKABLE: []}
    masked: list[list[int]] = []
    for number, row in enumerate(rows):
        maskable = ~np.isin(row, special)
        if not maskable.any():
            continue  # there is nothing to predict
        draw = np.random.default_rng((SEED, number))
        chosen = _chosen(maskable, data.mask_share, draw)
        columns[INPUT_IDS].append(row.tolist())
        columns[LOSS_MASK].append(chosen.astype(int).tolist())
        columns[MASKABLE].append(maskable.astype(int).tolist())
        masked.append(_masked(row, chosen, tokenizer, draw).tolist())
    if not masked:
        raise DataError("no row has a token to predict: the tokenizer knows none of the words")
    labels = pa.array(np.full(len(masked), tokenizer.mask_token_id, np.int64))
    made = lists(columns, labels=labels, label_names=())
    return made.append_column(MASKED_IDS, pa.array(masked, pa.large_list(pa.int32())))


def _chosen(maskable: NDArray[np.bool_], share: float, draw: np.random.Generator) -> Any:
    """Returns which tokens are predicted: a share of those that may be, at least one if any may."""
    places = np.flatnonzero(maskable)
    count = min(len(places), max(1, math.floor(share * len(places) + 0.5)))
    chosen = np.zeros(len(maskable), bool)
    chosen[draw.permutation(places)[:count]] = True
    return chosen


def _masked(row: Tokens, chosen: Any, tokenizer: Any, draw: np.random.Generator) -> Tokens:
    kind, others = draw.random(len(row)), draw.integers(0, len(tokenizer), len(row))
    read = np.where(chosen & (kind < HIDDEN), tokenizer.mask_token_id, row)
    found: Tokens = np.where(chosen & (kind >= 1 - REPLACED), others, read)
    return found


def _separator(tokenizer: Any) -> list[int]:
    found = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    return [] if found is None else [found]


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Returns the special tokens before and after a single text."""
    marked = tokenise(tokenizer, "a", return_special_tokens_mask=True)
    ids, special = marked[INPUT_IDS], marked["special_tokens_mask"]
    real = [place for place, is_special in enumerate(special) if not is_special]
    return ids[: real[0]], ids[real[-1] + 1 :]
