"""The columns of a table that a first job learns from, and their values as texts and labels."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.spec.row_form import FormColumn, RowForm
from jobs.spec.task import Task
from jobs.training.data import conversations, labels
from jobs.training.data.table import Table

RowLabels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roles:
    """A task, a form of its rows, and the columns of a table that have this form."""

    task: Task
    """The task, or the variant of it that the form is for."""
    form: RowForm
    columns: Mapping[str, tuple[str, ...]]
    """The columns that each field of the data section names, in the order of the form."""
    also_fits: tuple[str, ...] = ()
    """Other tasks that can learn from the table."""

    @property
    def used(self) -> tuple[str, ...]:
        """All columns, in the order of the form."""
        return tuple(name for names in self.columns.values() for name in names)

    @property
    def label(self) -> str | None:
        """The column of the labels; None in a form without labels."""
        form = self._label_form
        return None if form is None else self.columns[form.field][0]

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns without that of the labels."""
        return tuple(name for name in self.used if name != self.label)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of what a model answers; rows that share them stay in one split."""
        fields = [column.field for column in self.form.columns if column.is_input]
        return tuple(name for field in fields for name in self.columns[field])

    @property
    def has_single_labels(self) -> bool:
        """Whether each row has one label, which is a class."""
        return self._label_form is not None and "text" in self._label_form.kinds

    @property
    def has_numbers(self) -> bool:
        """Whether the label column has numbers, which are no classes."""
        return self._label_form is not None and "fraction" in self._label_form.kinds

    @property
    def _label_form(self) -> FormColumn | None:
        return next((column for column in self.form.columns if column.is_label), None)


def texts_of(table: Table, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the texts of each row: a text for each column; lists of texts are joined."""
    values = [[_text(value) for value in table.values(name)] for name in columns]
    return list(zip(*values, strict=True))


def labels_of(table: Table, roles: Roles, name: str) -> list[RowLabels]:
    """Returns the labels of each row; none in forms without labels, and of numbers.

    `name` stands for the table in errors.

    Raises:
        DataError: if a row has one label that is neither an integer nor a string.
    """
    if roles.label is None or roles.has_numbers:
        return [()] * len(table)
    if roles.has_single_labels:
        return [(label,) for label in labels.read(table, roles.label, name)]
    return [tuple(map(str, _several(value))) for value in labels.named(table, roles.label)]


def counted(found: Sequence[RowLabels]) -> dict[str, int]:
    """Returns how often each label occurs, in the order in which training numbers labels."""
    counts = Counter(label for row in found for label in row)
    return {label: counts[label] for label in labels.in_order(list(counts))}


def highest_number(table: Table, roles: Roles) -> int:
    """Returns the largest absolute number of the columns of scores, rounded up, and at least 1."""
    scored = [c.field for c in roles.form.columns if "fraction" in c.kinds and not c.is_label]
    names = [name for field in scored for name in roles.columns[field]]
    numbers = [abs(float(v)) for name in names for v in table.values(name) if _is_number(v)]
    return math.ceil(max([1.0, *numbers]))


def _is_number(value: Any) -> bool:
    return labels.NUMBER.fullmatch(str(value)) is not None and math.isfinite(float(value))


def _several(value: Any) -> Iterator[Any]:
    """Yields the labels of a list of labels or spans, or of an object of lists."""
    if isinstance(value, dict):
        yield from value["label"]
    else:
        yield from (item["label"] if isinstance(item, dict) else item for item in value or ())


def _text(value: Any) -> str:
    messages = conversations.messages_of(value)
    if messages is not None:
        return " ".join(message["content"] for message in messages)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
