"""Checks the prompts and answers of local rows before anything is trained."""

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.preference import answers
from jobs.tasks.preference.task import PreferenceData
from jobs.training.data import texts
from jobs.training.data.checks import RowChecks
from jobs.training.data.table import Table


class PreferenceChecks(RowChecks):
    """Prompts are text, and answers are text or messages."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """The columns that are named."""
        assert isinstance(data, PreferenceData)
        fields = ("prompt", "messages", "chosen", "rejected")
        named = ((field, getattr(data, field)) for field in fields)
        return tuple((field, name) for field, name in named if name is not None)

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raise DataError for values that are no texts or messages."""
        if field == "prompt":
            texts.read(rows, name, source.shown, may_be_empty=False)
        else:
            answers.read(rows, name, source.shown, may_be_text=field != "messages")


CHECKS = PreferenceChecks()
