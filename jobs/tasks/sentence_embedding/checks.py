"""Checks the texts and scores of local rows before anything is trained."""

from collections.abc import Iterator, Mapping

from jobs.errors import DataError
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.sentence_embedding import scores
from jobs.tasks.sentence_embedding.task import EmbeddingData
from jobs.training.data import texts
from jobs.training.data.checks import RowChecks, source_of
from jobs.training.data.table import Table


class EmbeddingChecks(RowChecks):
    """Texts are text, and scores are numbers within their bounds."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """The columns of texts, and of scores if there are any."""
        assert isinstance(data, EmbeddingData)
        named = data.roles.items()
        found = [("text" if data.text is not None else role, column) for role, column in named]
        return (*found, *([("score", data.score)] if data.score is not None else []))

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raises DataError for values that are no texts or numbers."""
        if field == "score":
            scores.read(rows, name, source.shown)
        else:
            texts.read(rows, name, source.shown, may_be_empty=False)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """No score exceeds the highest one."""
        assert isinstance(data, EmbeddingData)
        if data.score is None:
            return
        for split, rows in found.items():
            try:
                scores.read(rows, data.score, source_of(data, split).shown, data.highest_score)
            except DataError as error:
                yield "score", str(error)


CHECKS = EmbeddingChecks()
