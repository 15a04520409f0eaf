"""Reads, checks and tokenises prompts with responses, and conversations."""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.tasks.causal_lm.task import LanguageData
from jobs.training.data import chat_template, conversations, sources, texts
from jobs.training.data.conversations import Conversation
from jobs.training.data.encoding import (
    Progress,
    in_chunks,
    lists,
    parallel_tokenizers,
    tokenise,
)
from jobs.training.data.table import Table
from jobs.training.data.tokens import INPUT_IDS, LOSS_MASK

ENDS, LEFT_OUT, CUT = b"end_tokens", b"left_out", b"cut"
Encoded = tuple[list[int], list[int]]
"""Token ids, and 1 for those that are trained."""


def encode(
    source: SourceSpec, data: LanguageData, tokenizer: Any, progress: Progress | None = None
) -> pa.Table:
    """Token ids and loss mask of every row that has a response left within max_length.

    A prompt and its response are joined as they are written, and closed with the end token;
    messages go through the tokenizer's chat template. Raises DataError when nothing is left.
    """
    table = sources.read(source)
    rows: list[Encoded] = []
    with parallel_tokenizers():
        for chunk in in_chunks(range(len(table)), progress):
            rows += _encode_chunk(table, chunk, source, data, tokenizer)
    length = data.max_length
    cut = [(ids[:length], mask[:length]) for ids, mask in rows]
    kept = [(ids, mask) for ids, mask in cut if any(mask[1:])]
    if not kept:
        raise DataError(
            f"{source.shown} has no row with a response within data.max_length {length}; raise it"
        )
    columns = {INPUT_IDS: [ids for ids, _ in kept], LOSS_MASK: [mask for _, mask in kept]}
    made = lists(columns, labels=pa.array(np.zeros(len(kept), np.int64)), label_names=())
    ends = end_tokens_of(rows, tokenizer, is_chat=data.messages is not None)
    counts = {
        LEFT_OUT: str(len(rows) - len(kept)),
        CUT: str(sum(len(ids) > length and any(mask[1:length]) for ids, mask in rows)),
    }
    return made.replace_schema_metadata({**made.schema.metadata, **counts, ENDS: json.dumps(ends)})


def prepare(tokenizer: Any, data: LanguageData) -> None:
    """Give a tokenizer without a chat template the plain one, to be saved with the model."""
    if data.messages is not None and tokenizer.chat_template is None:
        tokenizer.chat_template = chat_template.PLAIN_TEMPLATE


def left_out(table: pa.Table) -> int:
    """Returns the rows whose response lies beyond max_length, which are left out."""
    return int(table.schema.metadata.get(LEFT_OUT, b"0"))


def cut(table: pa.Table) -> int:
    """Returns the rows of which what lies beyond max_length is cut off."""
    return int(table.schema.metadata.get(CUT, b"0"))


@functools.lru_cache(maxsize=1)
def prompts(source: SourceSpec, data: LanguageData, tokenizer: Any, count: int) -> list[list[int]]:
    """Token ids of the first prompts, ready for an answer.

    They are kept for the next evaluation, which would have to read the whole source again.
    """
    table = sources.read(source)
    rows = min(count, len(table))
    if data.messages is None:
        assert data.prompt is not None
        return [prompt_ids(str(text), tokenizer) for text in table.values(data.prompt, 0, rows)]
    found = conversations.read(table, data.messages, source.shown, 0, rows)
    tools = _tools(table, source, data, 0, rows)
    texts = [
        chat_template.write(conversation[:last], tokenizer, ask=True, tools=usable)
        for conversation, usable in zip(found, tools, strict=True)
        for *_, last in [conversations.answers(conversation)]
    ]
    return [tokenise(tokenizer, text, add_special_tokens=False)[INPUT_IDS] for text in texts]


def _encode_chunk(
    table: Table, chunk: Sequence[int], source: SourceSpec, data: LanguageData, tokenizer: Any
) -> list[Encoded]:
    start, stop = chunk[0], chunk[-1] + 1
    if data.messages is not None:
        table.require_columns((data.messages,), source.shown)
        found = conversations.read(table, data.messages, source.shown, start, stop)
        tools = _tools(table, source, data, start, stop)
        rows = encode_conversations(found, tokenizer, (source.shown, start), tools=tools)
        return [row for several in rows for row in several]
    assert data.prompt is not None
    assert data.response is not None
    table.require_columns((data.prompt, data.response), source.shown)
    asked, answered = (
        texts.read(table, name, source.shown, start, stop, may_be_empty=False)
        for name in (data.prompt, data.response)
    )
    return encode_pairs(asked, answered, tokenizer)


def _tools(
    table: Table, source: SourceSpec, data: LanguageData, start: int, stop: int
) -> list[list[Any] | None]:
    if data.tools is None:
        return [None] * (stop - start)
    table.require_columns((data.tools,), source.shown)
    return conversations.tools(table, data.tools, source.shown, start, stop)


def encode_pairs(asked: Sequence[str], answered: Sequence[str], tokenizer: Any) -> list[Encoded]:
    """Returns each prompt with its response and the end token; the response is trained."""
    responses = tokenise(tokenizer, list(answered), add_special_tokens=False)[INPUT_IDS]
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    rows = []
    for prompt, response in zip(asked, responses, strict=True):
        head = prompt_ids(prompt, tokenizer)
        tail = [*response, *end]
        rows.append((head + tail, [0] * len(head) + [1] * len(tail)))
    return rows


def prompt_ids(prompt: str, tokenizer: Any) -> list[int]:
    """Returns the tokens of a text that goes on: without an end token, and begun but once."""
    return chat_template.goes_on(tokenise(tokenizer, prompt)[INPUT_IDS], tokenizer)


def encode_conversations(
    found: Sequence[Conversation],
    tokenizer: Any,
    place: tuple[str, int],
    first: Sequence[int] | None = None,
    tools: Sequence[list[Any] | None] | None = None,
) -> list[list[Encoded]]:
    """Returns the rows of each conversation, as `chat_template.answers` writes it.

    Args:
        found: The conversations.
        tokenizer: The tokenizer of the base.
        place: What the conversations are of, and how many rows stand before them, for errors.
        first: The message of each conversation from which on answers are trained; by default all.
        tools: The tools of each conversation.

    Raises:
        DataError: with the row that the chat template refuses.
    """
    (name, before), written = place, []
    firsts, all_tools = first or [0] * len(found), tools or [None] * len(found)
    for row, (each, begin, usable) in enumerate(
        zip(found, firsts, all_tools, strict=True), before + 1
    ):
        try:
            written.append(chat_template.answers(each, tokenizer, first=begin, tools=usable))
        except DataError as error:
            raise DataError(f"{name} row {row}: {error}") from None
    rows = iter(_encode_texts([text for texts in written for text in texts], tokenizer))
    return [list(itertools.islice(rows, len(texts))) for texts in written]


def _encode_texts(
    written: Sequence[tuple[str, list[chat_template.Span]]], tokenizer: Any
) -> list[Encoded]:
    """Returns the tokens of texts, and which of them belong to answers."""
    texts = [text for text, _ in written]
    encoded = tokenise(tokenizer, texts, add_special_tokens=False, return_offsets_mapping=True)
    prompts = [text[:low] for text, found in written for low, _ in found]
    of_prompts = iter(tokenise(tokenizer, prompts, add_special_tokens=False)[INPUT_IDS])
    rows = []
    for (text, answers), ids, places in zip(
        written, encoded[INPUT_IDS], encoded["offset_mapping"], strict=True
    ):
        # if a prompt alone has other tokens than within the conversation, as at an endpoint, the
        # text is tokenised in pieces
        if all(ids[: len(prompt)] == prompt for prompt in _next(of_prompts, len(answers))):
            mask = [int(any(low <= begin < high for low, high in answers)) for begin, _ in places]
            rows.append((ids, mask))
        else:
            rows.append(_in_pieces(text, answers, tokenizer))
    return rows


def _next(items: Iterator[list[int]], count: int) -> list[list[int]]:
    return list(itertools.islice(items, count))


def _in_pieces(text: str, answers: Sequence[tuple[int, int]], tokenizer: Any) -> Encoded:
    """A conversation whose prompts are tokenised apart from the answers that follow."""
    starts = [0, *(low for low, _ in answers), len(text)]
    ends = [0, *(high for _, high in answers)]
    ids, mask = list[int](), list[int]()
    for (start, stop), end in zip(itertools.pairwise(starts), ends, strict=True):
        piece = text[start:stop]
        found = tokenise(tokenizer, piece, add_special_tokens=False, return_offsets_mapping=True)
        ids += found[INPUT_IDS]
        mask += [int(start + begin < end) for begin, _ in found["offset_mapping"]]
    return ids, mask


def end_tokens(table: pa.Table) -> tuple[int, ...]:
    """Tokens that end an answer: of the tokenizer, and the special one that its template writes."""
    return tuple(json.loads(table.schema.metadata[ENDS]))


def end_tokens_of(rows: Sequence[Encoded], tokenizer: Any, *, is_chat: bool) -> list[int]:
    """Returns the tokens that end an answer: the tokenizer's, and in chats the template's.

    The latter is the special token with which the trained part of the first row ends.
    """
    known = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ids, mask = rows[0]
    if is_chat:
        trained = [token for token, is_trained in zip(ids, mask, strict=True) if is_trained]
        words = (token for token in reversed(trained) if tokenizer.decode([token]).strip())
        known += [token for token in itertools.islice(words, 1) if token in special]
    return list(dict.fromkeys(known))
