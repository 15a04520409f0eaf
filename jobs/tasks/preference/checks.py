"""Checks the prompts and answers of local rows before anything is trained."""

from collections.abc import Iterator, Mapping

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.preference import answers
from jobs.tasks.preference.task import PreferenceData
from jobs.training.data import texts
from jobs.training.data.checks import RowChecks, source_of
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
        elif field == "messages":
            answers.read(rows, name, source.shown, may_be_text=False)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """Answers to a prompt are texts; others part where the assistant answers."""
        assert isinstance(data, PreferenceData)
        for split, rows in found.items():
            source = source_of(data, split)
            try:
                if data.prompt is None:
                    answers.pairs(rows, source, data)
                else:
                    for name in (str(data.chosen), str(data.rejected)):
                        texts.read(rows, name, source.shown, may_be_empty=False)
            except DataError as error:
                yield "chosen", str(error)


CHECKS = PreferenceChecks()
