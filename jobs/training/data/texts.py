"""Columns of text, as they are written."""

from datetime import date, time
from decimal import Decimal

from jobs.errors import DataError, shown
from jobs.training.data.table import Table


def read(
    table: Table,
    column: str,
    name: str,
    start: int = 0,
    stop: int | None = None,
    *,
    may_be_empty: bool = True,
) -> list[str]:
    """Text, and numbers and dates as they are written; `name` stands for the table in errors.

    Raises:
        DataError: for anything else.
    """
    values = table.values(column, start, stop)
    for row, value in enumerate(values, start + 1):
        is_text = isinstance(value, str | int | float | Decimal | date | time)
        if not is_text or (value == "" and not may_be_empty):
            wanted = "not text" if may_be_empty else "not text of a character or more"
            raise DataError(f"{name} row {row}: column {column!r} holds {shown(value)}, {wanted}")
    return [str(value) for value in values]
