"""Checks the texts and label lists of local rows before anything is trained."""

from collections import Counter
from collections.abc import Iterator, Mapping

from jobs.errors import DataError, listed, shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification.checks import LabelledTextChecks
from jobs.tasks.text_classification.multi_label import labels
from jobs.tasks.text_classification.task import ClassificationData, unknown_labels
from jobs.training.data import texts
from jobs.training.data.checks import source_of
from jobs.training.data.table import Table

MOST = 4096
"""Most labels: more are free text, or numbers that name rows."""


class MultiLabelChecks(LabelledTextChecks):
    """Texts are text, rows list labels, and evaluation rows have no others than training rows."""

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raises DataError for values that are no texts; labels are read in `across_splits`."""
        if field == "text":
            texts.read(rows, name, source.shown, may_be_empty=True)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """Labels can be read, training rows have at least one, and evaluation rows no others."""
        assert isinstance(data, ClassificationData)
        counts: dict[str, Counter[str]] = {}
        for split, rows in found.items():
            source = source_of(data, split)
            try:
                each = labels.read(rows, data, source.shown)
            except DataError as error:
                yield "label", str(error)
                return
            counts[split] = Counter(label for row in each for label in row)
        train, held_back = counts.get("train"), counts.get("eval", Counter())
        if train is None:
            return
        known = tuple(train)
        if len(data.label_columns) > 1:
            known = data.label_columns
        if not train:
            yield "label", f"{data.train.shown} has no row with a label; there is nothing to learn"
        elif len(train) > MOST:
            yield "label", f"{data.train.shown} has {len(train)} different labels; {MOST} at most"
        elif unknown := sorted(held_back.keys() - set(known)):
            rows_with, names = held_back[unknown[0]], listed(sorted(known))
            yield (
                "label",
                f"{data.eval.shown} has the label {shown(unknown[0])} ({rows_with} rows), which is"
                f" not among the training labels ({names})",
            )
        else:
            yield from unknown_labels(data, known)


CHECKS = MultiLabelChecks()
