"""Columns of text, as strings."""

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
    """Returns text, numbers and dates of rows `start` to `stop` as strings.

    `name` stands for the table in errors.

    Raises:
        DataError: for other values, and for empty text unless `may_be_empty`.
    """
    values = table.values(column, start, stop)
    for row, value in enumerate(values, start + 1):
        is_text = isinstance(value, str | int | float | Decimal | date | time)
        if not is_text or (value == "" and not may_be_empty):
            reason = "not text" if may_be_empty else "not text of at least one character"
            raise DataError(f"{name} row {row}: column {column!r} holds {shown(value)}, {reason}")
    return [str(value) for value in values]
