"""The labels of a classifier's rows, as strings."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data.table import Table

INTEGER = re.compile(r"-?[0-9]{1,300}")
NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def read(table: Table, column: str, name: str) -> list[str]:
    """Returns the label of each row; `name` stands for the table in errors.

    Raises:
        DataError: if a value is not a label, or the labels are numbers with fractions, which are
            targets of a regression and not classes.
    """
    values = named(table, column)
    fractions = are_fractions(values)
    for row, value in enumerate(values, 1):
        is_name = isinstance(value, str | int | Decimal) and value != ""
        if not is_name or (fractions and not INTEGER.fullmatch(str(value))):
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)};"
                " a label is an integer or a string"
            )
    return [str(value) for value in values]


def named(table: Table, column: str) -> list[Any]:
    """Returns the values of a column, with the name of each class in place of its number.

    A number without a name, such as -1 of unlabelled rows, becomes None. Lists of numbers become
    lists of names.
    """
    values, names = table.values(column), table.class_names.get(column)
    return values if names is None else [_name(value, names) for value in values]


def _name(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_name(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


def are_fractions(values: Sequence[object]) -> bool:
    """Returns whether all values are numbers and some have a fraction."""
    texts = [str(value) for value in values]
    return all(map(NUMBER.fullmatch, texts)) and not all(map(INTEGER.fullmatch, texts))


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct labels, sorted as numbers if all are integers, else as text."""
    names = sorted(set(labels))
    if all(INTEGER.fullmatch(name) for name in names):
        names.sort(key=int)
    return tuple(names)
