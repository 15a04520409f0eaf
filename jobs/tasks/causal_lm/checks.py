"""Checks the prompts, responses and conversations of local rows before anything is trained."""

from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.causal_lm.task import LanguageData
from jobs.training.data import conversations, texts
from jobs.training.data.checks import RowChecks
from jobs.training.data.table import Table


class LanguageChecks(RowChecks):
    """Prompts and responses are text, and conversations have an answer to learn."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """The columns that are named."""
        assert isinstance(data, LanguageData)
        fields = ("prompt", "response", "messages", "tools", "text")
        named = ((field, getattr(data, field)) for field in fields)
        return tuple((field, name) for field, name in named if name is not None)

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raise DataError for values that are no texts or conversations."""
        if field == "messages":
            conversations.read(rows, name, source.shown)
        elif field == "tools":
            conversations.tools(rows, name, source.shown)
        else:
            texts.read(rows, name, source.shown, may_be_empty=False)


CHECKS = LanguageChecks()
