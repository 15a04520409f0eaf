"""Reads the columns of tokens with tags, and of texts with spans, and checks them row by row."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data import labels
from jobs.training.data.table import Table

FIELDS = ("start", "end", "label")
"""Fields of a span."""


@dataclass(frozen=True, slots=True)
class Span:
    """An entity of a text, in characters."""

    start: int
    end: int
    """The character after the last."""
    label: str


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A text with the tag of each word, or with spans."""

    text: str
    words: Sequence[tuple[int, int]] = ()
    """First character of each word, and the one after its last; empty for a text with spans."""
    tags: Sequence[str] = ()
    """Of each word, in BIO."""
    spans: Sequence[Span] | None = None
    """In the order of the text; None for a text with tags."""


def read_lists(table: Table, column: str, name: str, kind: str) -> list[list[str]]:
    """Returns the list of texts of each row; `name` stands for the table in errors.

    Raises:
        DataError: for values that are no lists of texts, or empty.
    """
    found = []
    for row, value in enumerate(labels.named(table, column), 1):
        place = f"{name} row {row}: column {column!r} holds {shown(value)}"
        if not isinstance(value, list) or not value:
            raise DataError(f"{place}, and not a list of {kind}")
        for each in value:
            if isinstance(each, bool) or not isinstance(each, str | int) or each == "":
                raise DataError(f"{place}; each of the {kind} is text of at least one character")
        found.append([str(each) for each in value])
    return found


def check_lengths(
    tokens: Sequence[Sequence[str]], tagged: Sequence[Sequence[str]], name: str
) -> None:
    """Raises DataError for a row with more tokens than tags, or fewer."""
    for row, (words, own) in enumerate(zip(tokens, tagged, strict=True), 1):
        if len(words) != len(own):
            raise DataError(f"{name} row {row} has {len(words)} tokens and {len(own)} tags")


def read_spans(table: Table, column: str, name: str) -> list[list[Span]]:
    """Returns the spans of each row, in the order of the text.

    A row has a list of objects, or an object of lists as `datasets` writes it; none is an empty
    list or null.

    Raises:
        DataError: for a value that is no list of spans, and for spans that overlap.
    """
    found = []
    for row, value in enumerate(table.values(column), 1):
        place = f"{name} row {row}"
        spans = sorted((_span(each, place) for each in _objects(value, place)), key=_begin)
        for one, other in itertools.pairwise(spans):
            if other.start < one.end:
                raise DataError(
                    f"{place}: the spans {_shown(one)} and {_shown(other)} overlap; keep one"
                )
        found.append(spans)
    return found


def check_spans(written: Sequence[str], found: Sequence[Sequence[Span]], name: str) -> None:
    """Raises DataError for a span that exceeds its text or covers white space only."""
    for row, (text, spans) in enumerate(zip(written, found, strict=True), 1):
        for span in spans:
            if span.end > len(text):
                raise DataError(
                    f"{name} row {row}: the span {_shown(span)} exceeds the text, which has"
                    f" {len(text)} characters"
                )
            if not text[span.start : span.end].strip():
                raise DataError(
                    f"{name} row {row}: the span {_shown(span)} covers white space only; remove it"
                )


def places(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where each token is in the text that joins them with spaces."""
    start = 0
    for token in tokens:
        yield start, start + len(token)
        start += len(token) + 1


def _objects(value: Any, place: str) -> Iterator[Mapping[str, Any]]:
    if value is None:
        return
    if isinstance(value, dict) and all(isinstance(value.get(field), list) for field in FIELDS):
        parts = [value[field] for field in FIELDS]
        if len({len(part) for part in parts}) == 1:
            value = [dict(zip(FIELDS, each, strict=True)) for each in zip(*parts, strict=True)]
    if not isinstance(value, list):
        raise DataError(f"{place}: {shown(value)} is not a list of spans {{start, end, label}}")
    yield from value


def _span(value: Any, place: str) -> Span:
    """Checks one span; raises DataError."""
    parts = [value.get(field) for field in FIELDS] if isinstance(value, dict) else []
    start, end, label = parts or (None, None, None)
    is_range = all(isinstance(n, int) and not isinstance(n, bool) for n in (start, end))
    if not is_range or not isinstance(label, str) or not label:
        raise DataError(
            f"{place}: {shown(value)} is no span; write {{start, end, label}} with two whole"
            " numbers and the name of an entity"
        )
    span = Span(int(start or 0), int(end or 0), label)
    if not 0 <= span.start < span.end:
        raise DataError(
            f"{place}: the span {_shown(span)} does not begin before its end, from 0 on"
        )
    return span


def _begin(span: Span) -> tuple[int, int]:
    return span.start, span.end


def _shown(span: Span) -> str:
    return f"{span.start}–{span.end} ({span.label})"
