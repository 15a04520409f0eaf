"""Rows of a source with the text as written, before tokenising."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.errors import DataError, listed, shown

Column = Any
"""Values of all rows: a list of texts, lists or objects, or a ChunkedArray of Arrow."""


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of a source as named columns of equal length."""

    columns: Mapping[str, Column]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Class names of each column of type ClassLabel, or of lists of them, in the order of their
    numbers."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def values(self, name: str, start: int = 0, stop: int | None = None) -> list[Any]:
        """Returns the values of a column from row `start` to `stop`; missing values are None."""
        column = self.columns[name]
        part = column[start:stop]
        return part if isinstance(part, list) else list(part.to_pylist())

    def take(self, rows: Sequence[int]) -> "Table":
        """Returns the rows with these indices, in the order of `rows`."""
        columns = {name: self.values(name) for name in self.columns}
        taken = {name: [values[row] for row in rows] for name, values in columns.items()}
        return Table(taken, self.class_names)

    def require_columns(self, names: Iterable[str], name: str) -> None:
        """Checks that columns exist; `name` stands for the table in errors.

        Raises:
            DataError: if a column does not exist.
        """
        for column in names:
            if column not in self.columns:
                known = listed(self.columns)
                raise DataError(f"{name} has no column {shown(column)}; its columns are {known}")


def joined(tables: Mapping[str, Table]) -> Table:
    """Concatenates the rows of tables, which are given by name.

    Raises:
        DataError: if the tables differ in their columns or class names.
    """
    (first, one), *others = tables.items()
    for name, other in others:
        if set(other.columns) != set(one.columns):
            raise DataError(
                f"{name} has the columns {listed(other.columns)}, and {first}"
                f" {listed(one.columns)}; files of one split must have the same columns"
            )
        if other.class_names != one.class_names:
            raise DataError(
                f"{name} and {first} name the classes of their labels differently; files of one"
                " split must give each class the same number"
            )
    if not others:
        return one
    columns = {n: [v for table in tables.values() for v in table.values(n)] for n in one.columns}
    return Table(columns, one.class_names)


def check_titles(titles: Sequence[str], name: str) -> None:
    """Checks that no column is there twice; `name` stands for the file in errors.

    Raises:
        DataError: with the name of the column.
    """
    twice = [title for title in titles if titles.count(title) > 1]
    if twice:
        raise DataError(
            f"{name}: its header has column {shown(twice[0])} twice; rename one of them"
        )
