"""What a task checks in the rows of a job before anything is trained; imports no torch."""

import abc
from collections.abc import Iterator, Mapping

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.training.data.table import Table


class RowChecks(abc.ABC):
    """Checks of a task's columns, as far as rows are at hand."""

    @abc.abstractmethod
    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """Fields of the data section that name columns, each with a column."""

    @abc.abstractmethod
    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raise DataError for values that training would refuse."""

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """What is wrong with both splits together: field and sentence. Columns are usable."""
        yield from ()

    def violations(self, data: DataSpec, found: Mapping[str, Table]) -> Iterator[tuple[str, str]]:
        """Field and sentence of everything that is wrong with the splits at hand."""
        wrong = [
            each for split, rows in found.items() for each in self._unusable(data, split, rows)
        ]
        yield from wrong
        if not wrong:
            yield from self.across_splits(data, found)

    def _unusable(self, data: DataSpec, split: str, rows: Table) -> Iterator[tuple[str, str]]:
        source = source_of(data, split)
        for field, name in self.columns(data):
            try:
                rows.require_columns((name,), source.shown)
                self.check_column(field, name, source, rows)
            except DataError as error:
                yield field, str(error)


def source_of(data: DataSpec, split: str) -> SourceSpec:
    """Where the rows of a split, `train` or `eval`, are."""
    return data.train if split == "train" else data.eval
