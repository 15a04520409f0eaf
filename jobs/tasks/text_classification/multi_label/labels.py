"""The labels of rows that may have several: lists, separated text, or a column for each label."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from jobs.errors import DataError, shown
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.data import labels
from jobs.training.data.table import Table

IS_LABELLED = {
    **dict.fromkeys(("1", "1.0", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "0.0", "false", "False", "FALSE"), False),
}
"""Values of a column that stands for a label, as text."""
RowLabels = tuple[str, ...]


def read(table: Table, data: ClassificationData, name: str) -> list[RowLabels]:
    """Returns the labels of each row, each once; `name` stands for the table in errors.

    Raises:
        DataError: if a value is no list of labels.
    """
    if len(data.label_columns) > 1:
        columns = [read_indicators(table, column, name) for column in data.label_columns]
        rows = zip(*columns, strict=True)
        return [
            tuple(label for label, has in zip(data.label_columns, row, strict=True) if has)
            for row in rows
        ]
    return read_lists(table, data.label_columns[0], data.separator, name)


def names_of(table: Table, data: ClassificationData, found: Sequence[RowLabels]) -> RowLabels:
    """Returns the names of all labels, in their order in the data section or as classes have it."""
    if len(data.label_columns) > 1:
        return data.label_columns
    named = table.class_names.get(data.label_columns[0])
    return named or labels.in_order([label for row in found for label in row])


def read_indicators(table: Table, column: str, name: str) -> list[bool]:
    """Returns which rows have the label of a column, which holds 1 or 0, or true or false."""
    found = []
    for row, value in enumerate(table.values(column), 1):
        has = IS_LABELLED.get(str(value).strip())
        if has is None:
            raise DataError(
                f"{name} row {row}: column {shown(column)} holds {shown(value)}; a column that"
                " stands for a label holds 1 for rows with it and 0 for others"
            )
        found.append(has)
    return found


def read_lists(table: Table, column: str, separator: str | None, name: str) -> list[RowLabels]:
    """Returns the labels of a column of lists, or of text in which `separator` is between them."""
    numbered = table.class_names.get(column)
    return [
        _row(value, separator, numbered, f"{name} row {row}: column {shown(column)}")
        for row, value in enumerate(table.values(column), 1)
    ]


def _row(
    value: Any, separator: str | None, numbered: Sequence[str] | None, place: str
) -> RowLabels:
    if isinstance(value, str) and separator is not None:
        return tuple(dict.fromkeys(filter(None, map(str.strip, value.split(separator)))))
    if not isinstance(value, list):
        remedy = (
            f"a row has a list of labels, or text with {shown(separator)} between them"
            if separator is not None
            else "a row has a list of labels; if they are in one text, name what is between them"
            " with data.separator"
        )
        raise DataError(f"{place} holds {shown(value)}; {remedy}")
    return tuple(dict.fromkeys(_label(item, numbered, place) for item in value))


def _label(item: Any, numbered: Sequence[str] | None, place: str) -> str:
    is_name = isinstance(item, str | int | Decimal) and not isinstance(item, bool) and item != ""
    if not is_name:
        raise DataError(f"{place} lists {shown(item)}; a label is an integer or a string")
    if numbered is not None and isinstance(item, int):
        if not 0 <= item < len(numbered):
            raise DataError(f"{place} lists {item}, and there are {len(numbered)} classes")
        return numbered[item]
    return str(item)
