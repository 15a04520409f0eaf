"""Checks the documents of local rows before anything is trained."""

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.masked_lm.task import MaskedData
from jobs.training.data import texts
from jobs.training.data.checks import RowChecks
from jobs.training.data.table import Table


class MaskedChecks(RowChecks):
    """Documents are text."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """Returns the one column."""
        assert isinstance(data, MaskedData)
        return (("text", data.text),)

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raises DataError for values that are no text."""
        texts.read(rows, name, source.shown)


CHECKS = MaskedChecks()
