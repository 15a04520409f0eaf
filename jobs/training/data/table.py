"""Rows of a source with the text as written, before tokenising."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

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


def of_arrow(table: pa.Table, class_names: Mapping[str, tuple[str, ...]] | None = None) -> Table:
    """Converts an Arrow table; booleans become `true` and `false`, bytes become UTF-8 text.

    Raises:
        pyarrow.ArrowInvalid: if text or bytes are not UTF-8.
    """
    columns = {name: _plain(table[name]) for name in table.column_names}
    return Table(columns, class_names or {})


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


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return _plain(column.cast(pa.large_binary()))
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if is_bytes or pa.types.is_boolean(kind):
        return column.cast(pa.large_string())
    column.validate(full=True)  # other programs may have written invalid UTF-8 into text
    return column
