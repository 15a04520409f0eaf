"""Reads, checks and tokenises texts with a tag for each word, or with entities as characters."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.errors import DataError, listed, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.text_classification.rows import SAMPLE
from jobs.tasks.token_classification import columns, tags
from jobs.tasks.token_classification.task import TokenData
from jobs.tasks.token_classification.words import Offsets, WordRule, groups_of, without_spaces
from jobs.training.data import encoding, sources, texts
from jobs.training.data.encoding import Progress, in_chunks, lists, parallel_tokenizers, sample
from jobs.training.data.tokens import IGNORED, INPUT_IDS, TOKEN_LABELS

OFFSETS, SPECIAL = "offset_mapping", "special_tokens_mask"
Chunk = tuple[Sequence[str], dict[str, Any]]
"""Texts, and the tokenizer's columns of them."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is no special one."""

    at: int
    """Its place in the row."""
    id: int
    offsets: Offsets
    """Without white space at both ends."""


def load(source: SourceSpec, data: TokenData) -> list[columns.TaggedText]:
    """Reads all rows of a source; raises DataError where columns or values cannot be used."""
    table = sources.read(source)
    if data.text is not None and data.spans is not None:
        table.require_columns((data.text, data.spans), source.shown)
        written = texts.read(table, data.text, source.shown, may_be_empty=False)
        found = columns.read_spans(table, data.spans, source.shown)
        columns.check_spans(written, found, source.shown)
        return [
            columns.TaggedText(text, spans=spans)
            for text, spans in zip(written, found, strict=True)
        ]
    table.require_columns((data.tokens, data.tags), source.shown)
    tokens = columns.read_lists(table, data.tokens, source.shown, "tokens")
    bio = tags.to_bio(columns.read_lists(table, data.tags, source.shown, "tags"), source.shown)
    columns.check_lengths(tokens, bio, source.shown)
    return [
        columns.TaggedText(" ".join(row), tuple(columns.places(row)), own)
        for row, own in zip(tokens, bio, strict=True)
    ]


def encode(
    source: SourceSpec,
    data: TokenData,
    tokenizer: Any,
    label_names: Sequence[str],
    progress: Progress | None = None,
) -> pa.Table:
    """Token ids of every row, with the number of a label for the first token of each word.

    Labels are in BIO, whatever scheme the rows have. `label_names` is empty for training rows.

    Raises:
        DataError: for rows that cannot be used, and labels that training rows do not have.
    """
    rows = load(source, data)
    encoded: dict[str, list[list[int]]] = {}
    found: list[dict[int, str]] = []
    settings = {"truncation": True, "max_length": data.max_length, "return_attention_mask": False}
    extra = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    rule = WordRule.of(tokenizer.backend_tokenizer, tokenizer.unk_token_id)
    with parallel_tokenizers():
        for chunk in in_chunks(range(len(rows)), progress):
            part = rows[chunk[0] : chunk[-1] + 1]
            made = encoding.tokenise(tokenizer, [row.text for row in part], **settings, **extra)
            offsets, special = made.pop(OFFSETS), made.pop(SPECIAL)
            for index, row in enumerate(part):
                tokens = _tokens(row.text, made[INPUT_IDS][index], offsets[index], special[index])
                place = f"{source.shown} row {chunk[0] + index + 1}"
                found.append(_labels(row, tokens, tokenizer, rule, place))
            for name, values in made.items():
                encoded.setdefault(name, []).extend(values)
    names = label_names or tags.label_names([list(labels.values()) for labels in found])
    encoded[TOKEN_LABELS] = _numbers(found, encoded[INPUT_IDS], names, source.shown)
    table = lists(encoded, labels=pa.array(np.zeros(len(rows), np.int64)), label_names=names)
    sampled = [[rows[index].text] for index in sample(len(rows))]
    return table.replace_schema_metadata({**table.schema.metadata, SAMPLE: json.dumps(sampled)})


def _tokens(
    text: str, ids: Sequence[int], offsets: Sequence[Offsets], special: Sequence[int]
) -> list[Token]:
    """Tokens of text; not those that are special or white space alone."""
    tokens = []
    for at, (token, place, is_special) in enumerate(zip(ids, offsets, special, strict=True)):
        start, end = without_spaces(text, (place[0], place[1]))
        if not is_special and start < end:
            tokens.append(Token(at, token, (start, end)))
    return tokens


def _labels(
    row: columns.TaggedText, tokens: Sequence[Token], tokenizer: Any, rule: WordRule, place: str
) -> dict[int, str]:
    """Label of the first token of each word, by the token's place.

    A word of which the tokenizer makes no token has none: an entity then begins with its next word.
    """
    if row.spans is None:
        found = _labels_of_words(row, tokens)
    else:
        found = _labels_of_spans(row, tokens, tokenizer, rule, place)
    if not found:
        raise DataError(
            f"{place}: the base's tokenizer makes no token of {shown(row.text)}; remove the row"
        )
    return dict(zip(found, tags.continued(list(found.values())), strict=True))


def _labels_of_words(row: columns.TaggedText, tokens: Sequence[Token]) -> dict[int, str]:
    found: dict[int, str] = {}
    word, last = 0, -1
    for token in tokens:
        while word < len(row.words) and row.words[word][1] <= token.offsets[0]:
            word += 1
        if word == len(row.words):
            break
        if word != last and token.offsets[0] >= row.words[word][0]:
            found[token.at], last = row.tags[word], word
    return found


def _labels_of_spans(
    row: columns.TaggedText, tokens: Sequence[Token], tokenizer: Any, rule: WordRule, place: str
) -> dict[int, str]:
    names = tokenizer.convert_ids_to_tokens([token.id for token in tokens])
    begins = [
        rule.begins_word(row.text, token.id, name, token.offsets)
        for token, name in zip(tokens, names, strict=True)
    ]
    found, used = dict[int, str](), dict[columns.Span, str]()
    for group in groups_of(begins) if tokens else ():
        start, end = tokens[group[0]].offsets[0], tokens[group[-1]].offsets[1]
        spans = [span for span in row.spans or () if span.start < end and start < span.end]
        if len(spans) > 1:
            one, other = (shown(row.text[span.start : span.end]) for span in spans[:2])
            raise DataError(
                f"{place}: {one} and {other} share {shown(row.text[start:end])}, which is one word"
                " for the base's tokenizer and gets one label; put a space between them"
            )
        label = tags.OUTSIDE
        if spans:
            label = f"{'I' if spans[0] in used else 'B'}-{spans[0].label}"
            used[spans[0]] = label
        found[tokens[group[0]].at] = label
    return found


def _numbers(
    found: Sequence[dict[int, str]], ids: Sequence[Sequence[int]], names: Sequence[str], place: str
) -> list[list[int]]:
    """Number of the label of each token of each row; IGNORED for tokens without one."""
    number = {name: index for index, name in enumerate(names)}
    unknown = sorted({label for labels in found for label in labels.values()} - number.keys())
    if unknown:
        known = listed(sorted({name[2:] for name in names if name != tags.OUTSIDE}))
        raise DataError(
            f"{place}: the entity {shown(unknown[0][2:])} is not among those of the training rows"
            f" ({known})"
        )
    return [
        [number[labels[at]] if at in labels else IGNORED for at in range(len(tokens))]
        for labels, tokens in zip(found, ids, strict=True)
    ]
