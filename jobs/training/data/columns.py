"""Describes the columns of a table, and decides which hold the text and the label.

A label column has few distinct values, a text column has the longest values, and columns that
number the rows are ignored. If the values do not decide, the names of columns do.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.spec.row_form import ColumnKind
from jobs.training.data import labels
from jobs.training.data.conversations import is_message
from jobs.training.data.table import Table

LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "sentiment"),
    *("intent", "emotion", "topic", "gold"),
)
"""Usual names of label columns."""
TEXT_NAMES = ("text", "sentence", "content")
"""Usual names of a single text column."""
PAIRS = (
    *(("premise", "hypothesis"), ("query", "document"), ("query", "passage")),
    *(("question", "passage"), ("question", "sentence"), ("question", "context")),
    ("text", "text_pair"),
)
"""Usual names of the two text columns of sentence pairs."""
ROW_NAMES = {"id", "ids", "idx", "index", "uuid", "guid", "unnamed"}
"""Words in the names of columns that number the rows; pandas writes `Unnamed: 0`."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""Matches a word of a column's name, such as `sentence` and `2` in `sentence2`."""
LABEL_WORDS, LABEL_CHARACTERS = 4, 40
"""Largest average number of words and characters of the values in a label column."""
SENTENCE_WORDS = 1.5
"""Least average number of words of text, if any column reaches it; URLs and hashes have one word.
"""
COMPARABLE = 0.5
"""A column of at least this share of the longest column's average length may be its pair."""
SPAN_FIELDS = {"start", "end", "label"}
"""Fields of an object that is a stretch of a text."""


@dataclass(frozen=True, slots=True)
class Column:
    """Statistics of the values of a column."""

    name: str
    kind: ColumnKind
    rows: int
    distinct: int = 0
    """Number of distinct values, in a column of lists of their items; empty values do not count."""
    characters: float = 0.0
    """Average length of the nonempty values."""
    words: float = 0.0
    """Average number of words, separated by spaces, of the nonempty values."""

    @property
    def name_words(self) -> tuple[str, ...]:
        """The words of the column's name in lower case."""
        return tuple(word.lower() for word in WORD.findall(self.name))

    @property
    def is_called_label(self) -> bool:
        """Whether the column's name contains a usual name of label columns."""
        return not set(LABEL_NAMES).isdisjoint(self.name_words)

    @property
    def numbers_rows(self) -> bool:
        """Whether the column only numbers the rows."""
        is_unique = self.kind in ("integer", "number") and self.distinct == self.rows
        is_named = not self.name or not ROW_NAMES.isdisjoint(self.name_words)
        return not self.is_called_label and (is_unique or is_named)

    @property
    def is_short(self) -> bool:
        """Whether the values are as short as labels."""
        return self.words <= LABEL_WORDS and self.characters <= LABEL_CHARACTERS

    @property
    def repeats(self) -> bool:
        """Whether the values are few and short, as labels are."""
        is_few = 2 <= self.distinct <= self.rows / 2
        can_name = self.kind in ("text", "integer") and not self.numbers_rows
        return can_name and self.is_short and is_few


def describe(name: str, table: Table) -> Column:
    """Returns the statistics of a column over all its values."""
    values = [value for value in labels.named(table, name) if value is not None and value != ""]
    kind = _kind(values)
    if kind in ("spans", "conversation", "nested"):
        return Column(name, kind, len(table))
    texts = [str(item) for value in values for item in _items(value)]
    count = max(1, len(texts))
    return Column(
        name=name,
        kind=kind,
        rows=len(table),
        distinct=len(set(texts)),
        characters=sum(map(len, texts)) / count,
        words=sum(len(text.split()) for text in texts) / count,
    )


def find_label(columns: Sequence[Column]) -> Column | None:
    """Returns the label column; None if no column qualifies, or several do equally."""
    repeating = [column for column in columns if column.repeats]
    exact = [c for c in columns if c.name.lower() in LABEL_NAMES and c.distinct and c.is_short]
    tiers = (
        [column for column in exact if column.repeats],
        [column for column in repeating if column.is_called_label],
        exact,
        repeating,
        [column for column in columns if column.kind == "fraction"],
    )
    likeliest: list[Column] = next(filter(None, tiers), [])
    return likeliest[0] if len(likeliest) == 1 else None


def find_text(columns: Sequence[Column]) -> tuple[str, ...]:
    """Returns the text column, or two for sentence pairs; empty if the choice is ambiguous."""
    texts = [c for c in columns if c.kind == "text" and c.distinct > 1 and not c.numbers_rows]
    texts = [column for column in texts if not column.repeats] or texts
    if len(texts) == 1:
        return (texts[0].name,)
    pairs = [(a.name, b.name) for a in texts for b in texts if _is_pair(a, b)]
    if pairs:
        return pairs[0] if len(pairs) == 1 else ()
    named = [column.name for column in texts if column.name.lower() in TEXT_NAMES]
    return (named[0],) if len(named) == 1 else _longest(texts)


def _longest(texts: Sequence[Column]) -> tuple[str, ...]:
    sentences = [column for column in texts if column.words >= SENTENCE_WORDS] or texts
    most = max((column.characters for column in sentences), default=0.0)
    long = [column.name for column in sentences if column.characters >= COMPARABLE * most]
    return tuple(long) if len(long) <= 2 else ()


def _is_pair(first: Column, second: Column) -> bool:
    """Returns whether two names are a known pair, or differ by 1 and 2, 0 and 1, or a and b."""
    if (first.name.lower(), second.name.lower()) in PAIRS:
        return True
    words, others = first.name_words, second.name_words
    if len(words) != len(others):
        return False
    different = [pair for pair in zip(words, others, strict=True) if pair[0] != pair[1]]
    return len(different) == 1 and different[0] in (("1", "2"), ("0", "1"), ("a", "b"))


def _kind(values: Sequence[Any]) -> ColumnKind:
    if any(isinstance(value, list | dict) for value in values):
        return _structure(values)
    texts = [str(value) for value in values]
    if all(map(labels.INTEGER.fullmatch, texts)):
        return "integer"
    if all(map(labels.NUMBER.fullmatch, texts)):
        return "number" if all(float(text).is_integer() for text in texts) else "fraction"
    with_letters = sum(any(map(str.isalpha, text)) for text in texts)
    return "text" if 2 * with_letters > len(texts) else "number"


def _structure(values: Sequence[Any]) -> ColumnKind:
    if all(isinstance(value, list) and value and all(map(is_message, value)) for value in values):
        return "conversation"
    if any(values) and all(map(_has_spans, values)):
        return "spans"
    items = [item for value in values for item in _items(value)]
    is_plain = all(isinstance(value, list) for value in values) and items
    return "list" if is_plain and all(isinstance(item, str | int) for item in items) else "nested"


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else (value,)


def _has_spans(value: Any) -> bool:
    """Returns whether a value is a list of spans, or an object of lists as `datasets` writes it."""
    if isinstance(value, dict):
        return value.keys() >= SPAN_FIELDS and all(isinstance(value[f], list) for f in SPAN_FIELDS)
    spans = value if isinstance(value, list) else [value]
    return all(isinstance(span, dict) and span.keys() >= SPAN_FIELDS for span in spans)
