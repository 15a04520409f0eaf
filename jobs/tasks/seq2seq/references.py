"""The column of targets: one text a row, or a list of texts that are all right."""

from collections.abc import Sequence

from jobs.errors import DataError, shown
from jobs.training.data import texts
from jobs.training.data.table import Table


def read(
    table: Table, column: str, name: str, start: int = 0, stop: int | None = None
) -> list[list[str]]:
    """Returns the references of rows `start` to `stop`, at least one a row.

    `name` stands for the table in errors.

    Raises:
        DataError: for an empty list, and for values that are no text.
    """
    found = []
    for row, value in enumerate(table.values(column, start, stop), start + 1):
        several = value if isinstance(value, list) else [value]
        if not several:
            raise DataError(
                f"{name} row {row}: column {column!r} holds an empty list; give one text or more"
            )
        one = Table({column: several})
        try:
            found.append(texts.read(one, column, name, may_be_empty=False))
        except DataError:
            raise DataError(
                f"{name} row {row}: column {column!r} holds {shown(value)}, not text of at least"
                " one character or a list of such texts"
            ) from None
    return found


def only(references: Sequence[Sequence[str]], column: str, name: str) -> None:
    """Checks that rows to learn from have one target each.

    Raises:
        DataError: for the first row with several.
    """
    for row, several in enumerate(references, 1):
        if len(several) > 1:
            raise DataError(
                f"{name} row {row}: column {column!r} holds {len(several)} texts, and training"
                " learns one target a row; write a row for each"
            )
