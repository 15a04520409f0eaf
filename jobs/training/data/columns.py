"""Decides which columns of a table hold the text, the label or the conversations.

A label column has few distinct values, a text column has the longest values, and columns that
number the rows are ignored. If the values do not decide, the names of columns do.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.errors import DataError
from jobs.spec.task import RowKind
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
SEPARATOR = re.compile(r"[,;|]")
"""Matches what separates several labels of one row."""
HEADER_WORDS = 4
"""Words from which on the name of a text column may be a value of the first row."""

Kind = Literal["text", "integer", "number", "conversation", "nested"]


@dataclass(frozen=True, slots=True)
class Column:
    """Statistics of the values of a column."""

    name: str
    kind: Kind
    """`number` includes other values without letters, such as dates."""
    rows: int
    distinct: int = 0
    """Number of distinct values; empty values do not count."""
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


@dataclass(frozen=True, slots=True)
class Roles:
    """The columns that a job trains on."""

    text: tuple[str, ...] = ()
    """One column, or two for sentence pairs; empty for conversations."""
    label: str | None = None
    """None for conversations."""
    messages: str | None = None
    """The column of conversations; None for labelled texts."""

    @property
    def kind(self) -> RowKind:
        """The kind of rows that the columns make."""
        return "labelled-texts" if self.messages is None else "conversations"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns without the label."""
        return self.text if self.messages is None else (self.messages,)


def choose(table: Table, name: str, text: Sequence[str] = (), label: str | None = None) -> Roles:
    """Returns the columns to train on; `text` and `label` are columns that the user named.

    `name` stands for the table in errors.

    Raises:
        DataError: if a named column does not exist, or the columns are ambiguous.
    """
    table.require_columns((*text, *([label] if label is not None else ())), name)
    columns = [describe(title, table) for title in table.columns]
    if not text and label is None:
        conversations = [column.name for column in columns if column.kind == "conversation"]
        if conversations:
            return Roles(messages=_only(conversations, columns, name))
    chosen = label if label is not None else find_label([c for c in columns if c.name not in text])
    found = tuple(text) or find_text([c for c in columns if c.name != chosen])
    if chosen is None or not found:
        raise DataError(_unclear(columns, name))
    if label is None:
        _check_header(found[0], chosen, table, name)
        _check_single(chosen, table, name)
    return Roles(found, chosen)


def _only(conversations: Sequence[str], columns: Sequence[Column], name: str) -> str:
    if "messages" in conversations:
        return "messages"
    if len(conversations) > 1:
        raise DataError(_unclear(columns, name))
    return conversations[0]


def texts_of(table: Table, roles: Roles) -> list[tuple[str, ...]]:
    """Returns the texts of each row: one text, a pair, or the messages of a conversation."""
    if roles.messages is not None:
        conversations = table.values(roles.messages)
        return [tuple(m["content"] for m in messages) for messages in conversations]
    columns = [[str(value) for value in table.values(name)] for name in roles.text]
    return list(zip(*columns, strict=True))


def labels_of(table: Table, roles: Roles, name: str) -> list[str]:
    """Returns the label of each row; for conversations, an empty label for each row.

    `name` stands for the table in errors.

    Raises:
        DataError: if the label of a row is not an integer or a string.
    """
    if roles.label is None:
        return [""] * len(table)
    return labels.read(table, roles.label, name)


def describe(name: str, table: Table) -> Column:
    """Returns the statistics of a column over all its values."""
    values = [value for value in labels.named(table, name) if value is not None and value != ""]
    if any(isinstance(value, list | dict) for value in values):
        is_conversation = all(isinstance(v, list) and v and all(map(is_message, v)) for v in values)
        return Column(name, "conversation" if is_conversation else "nested", len(table))
    texts = [str(value) for value in values]
    count = max(1, len(texts))
    return Column(
        name=name,
        kind=_kind(texts),
        rows=len(table),
        distinct=len(set(texts)),
        characters=sum(map(len, texts)) / count,
        words=sum(len(text.split()) for text in texts) / count,
    )


def find_label(columns: Sequence[Column]) -> str | None:
    """Returns the label column; None if no column qualifies, or several do equally."""
    repeating = [column for column in columns if column.repeats]
    exact = [c for c in columns if c.name.lower() in LABEL_NAMES and c.distinct and c.is_short]
    tiers = (
        [column for column in exact if column.repeats],
        [column for column in repeating if column.is_called_label],
        exact,
        repeating,
    )
    likeliest: list[Column] = next(filter(None, tiers), [])
    return likeliest[0].name if len(likeliest) == 1 else None


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


def _kind(texts: Sequence[str]) -> Kind:
    if all(map(labels.INTEGER.fullmatch, texts)):
        return "integer"
    with_letters = sum(any(map(str.isalpha, text)) for text in texts)
    return "text" if 2 * with_letters > len(texts) else "number"


def _unclear(columns: Sequence[Column], name: str) -> str:
    if len(columns) == 1:
        return (
            f"{name} has only the column {columns[0].name!r}; training needs a text and a label"
            " column, or a column of conversations, which are lists of {role, content}"
        )
    listed = ", ".join(column.name for column in columns)
    has_lists = any(column.kind in ("conversation", "nested") for column in columns)
    hint = "; conversations are one column with lists of {role, content}" if has_lists else ""
    return (
        f"{name} has the columns {listed}, and it is not clear which are text and label; name them"
        f" with --text COLUMN (twice for pairs) and --label COLUMN{hint}"
    )


def _check_header(text: str, label: str, table: Table, name: str) -> None:
    """Raises DataError if the column names look like the first row of a file without a header."""
    if len(text.split()) >= HEADER_WORDS and label in map(str, table.values(label)):
        raise DataError(
            f"{name} has no header: the names of its columns, {text!r:.60} and {label!r}, look like"
            " a row; write a first line with names such as text and label"
        )


def _check_single(label: str, table: Table, name: str) -> None:
    """Raises DataError if a value of the label column joins several labels of other rows."""
    known = {str(value) for value in labels.named(table, label)}
    for value in sorted(known):
        parts = {part.strip() for part in SEPARATOR.split(value)}
        if len(parts) > 1 and parts <= known:
            raise DataError(
                f"{name}: {value!r} in column {label!r} lists several labels, and a classifier"
                f" gives one; keep one in each row, or use it as a label with --label {label}; to"
                " learn several, write a job with problem: multi-label and a separator"
            )
