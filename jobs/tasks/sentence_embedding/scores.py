"""The scores of pairs of texts, as shares of the highest score."""

import math
from decimal import Decimal
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data.table import Table


def read(table: Table, column: str, name: str, highest: float = math.inf) -> list[float]:
    """Returns the score of each row divided by `highest`; `name` stands for the table in errors.

    Without `highest`, returns the scores as they are.

    Raises:
        DataError: if a value is not a finite number, or is beyond `highest` on either side of 0.
    """
    divisor = highest if math.isfinite(highest) else 1.0
    found = []
    for row, value in enumerate(table.values(column), 1):
        number = _number(value)
        if number is None:
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}; a score is a number"
            )
        if abs(number) > highest:
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}, and scores lie between"
                f" -{highest:g} and {highest:g}; set data.highest_score to the score of two texts"
                " that mean the same"
            )
        found.append(number / divisor)
    return found


def _number(value: Any) -> float | None:
    """Returns a value as a finite number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
