"""Checks the sources and targets of local rows before anything is trained."""

from collections.abc import Iterator, Mapping

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.seq2seq import references
from jobs.tasks.seq2seq.task import Seq2SeqData
from jobs.training.data import texts
from jobs.training.data.checks import RowChecks
from jobs.training.data.table import Table


class Seq2SeqChecks(RowChecks):
    """Sources are text; targets are text, or lists of texts where the model is judged."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """The columns of sources and targets."""
        assert isinstance(data, Seq2SeqData)
        named = (("source", data.source), ("target", data.target))
        return tuple((field, name) for field, name in named if name is not None)

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raises DataError for values that are no texts."""
        if field == "target":
            references.read(rows, name, source.shown)
        else:
            texts.read(rows, name, source.shown, may_be_empty=False)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """Only evaluation rows have several targets."""
        assert isinstance(data, Seq2SeqData)
        if "train" in found and data.target is not None:
            try:
                several = references.read(found["train"], data.target, data.train.shown)
                references.only(several, data.target, data.train.shown)
            except DataError as error:
                yield "target", str(error)


CHECKS = Seq2SeqChecks()
