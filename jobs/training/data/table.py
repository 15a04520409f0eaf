"""Rows of a source as they were written, before anything is tokenised."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from jobs.errors import DataError, listed, shown

Column = Any
"""Values of all rows: text, lists and objects in a list, or what Arrow holds in a ChunkedArray."""


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of a source as named columns of equal length."""

    columns: Mapping[str, Column]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the classes of each column of type ClassLabel, in the order of their numbers."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def values(self, name: str, start: int = 0, stop: int | None = None) -> list[Any]:
        """Plain values of a column, of all rows or of some; a missing one is None."""
        column = self.columns[name]
        part = column[start:stop]
        return part if isinstance(part, list) else list(part.to_pylist())

    def take(self, rows: Sequence[int]) -> "Table":
        """Returns some rows, in the order of their numbers in `rows`."""
        columns = {name: self.values(name) for name in self.columns}
        taken = {name: [values[row] for row in rows] for name, values in columns.items()}
        return Table(taken, self.class_names)

    def require_columns(self, names: Iterable[str], name: str) -> None:
        """Raise DataError if a column is not there; `name` stands for the table."""
        for column in names:
            if column not in self.columns:
                known = listed(self.columns)
                raise DataError(f"{name} has no column {shown(column)}; its columns are {known}")


def of_arrow(table: pa.Table, class_names: Mapping[str, tuple[str, ...]] | None = None) -> Table:
    """An Arrow table; booleans become `true` and `false`, bytes the UTF-8 text that they hold.

    Raises:
        pyarrow.ArrowInvalid: if text or bytes are not UTF-8.
    """
    columns = {name: _plain(table[name]) for name in table.column_names}
    return Table(columns, class_names or {})


def joined(tables: Mapping[str, Table]) -> Table:
    """The rows of named tables, one after the other.

    Raises:
        DataError: if they have different columns.
    """
    (first, one), *others = tables.items()
    for name, other in others:
        if set(other.columns) != set(one.columns):
            raise DataError(
                f"{name} has the columns {listed(other.columns)}, and {first}"
                f" {listed(one.columns)}; files that are read together have the same"
            )
        if other.class_names != one.class_names:
            raise DataError(
                f"{name} and {first} name the classes of their labels differently; files that are"
                " read together number the same classes alike"
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
    column.validate(full=True)  # other writers may have put anything into text
    return column
