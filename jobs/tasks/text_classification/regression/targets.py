"""The numbers that a regression learns, of each row."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.errors import DataError, shown
from jobs.training.data.table import Table

Targets = NDArray[np.float64]


def read(table: Table, columns: tuple[str, ...], name: str) -> Targets:
    """Returns the numbers of all rows, (rows, columns); `name` stands for the table in errors.

    Raises:
        DataError: if a value is no finite number.
    """
    return np.array([read_column(table, column, name) for column in columns]).T


def read_column(table: Table, column: str, name: str) -> list[float]:
    """Returns the numbers of a column. Raises DataError for a value that is no finite number."""
    found = []
    for row, value in enumerate(table.values(column), 1):
        number = _number(value)
        if number is None or not math.isfinite(number):
            raise DataError(
                f"{name} row {row}: column {shown(column)} holds {shown(value)}; a regression"
                " learns finite numbers"
            )
        found.append(number)
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
