"""Checks of a job's rows that a task implements, before training; imports no torch."""

import abc
from collections.abc import Iterator, Mapping

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.training.data.table import Table


class RowChecks(abc.ABC):
    """Checks of a task's columns in the splits that can be read."""

    @abc.abstractmethod
    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """Returns the fields of the data section that name columns, each with its column."""

    @abc.abstractmethod
    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Checks the values of a column.

        Raises:
            DataError: for values that training would refuse.
        """

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """Yields field and message of each error that concerns both splits.

        It is called if the columns of each split have no errors.
        """
        yield from ()

    def violations(self, data: DataSpec, found: Mapping[str, Table]) -> Iterator[tuple[str, str]]:
        """Yields field and message of each error in the splits."""
        errors = [
            error
            for split, rows in found.items()
            for error in self._column_errors(data, split, rows)
        ]
        yield from errors
        if not errors:
            yield from self.across_splits(data, found)

    def _column_errors(self, data: DataSpec, split: str, rows: Table) -> Iterator[tuple[str, str]]:
        source = source_of(data, split)
        for field, name in self.columns(data):
            try:
                rows.require_columns((name,), source.shown)
                self.check_column(field, name, source, rows)
            except DataError as error:
                yield field, str(error)


def source_of(data: DataSpec, split: str) -> SourceSpec:
    """Returns the source of a split, `train` or `eval`."""
    return data.train if split == "train" else data.eval
