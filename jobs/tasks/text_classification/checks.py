"""Checks the texts and labels of local rows before anything is trained."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jobs.errors import DataError, listed, shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification.task import (
    ClassificationData,
    LabelledTexts,
    unknown_labels,
)
from jobs.training.data import labels, texts
from jobs.training.data.checks import RowChecks
from jobs.training.data.table import Table

MANY, RARELY = 50, 0.5
"""A label column is refused if it has more different values than MANY, and than this share of the
rows."""


class LabelledTextChecks(RowChecks):
    """Texts are text."""

    def columns(self, data: DataSpec) -> tuple[tuple[str, str], ...]:
        """Text columns and those of the label."""
        assert isinstance(data, LabelledTexts)
        texts_of = (("text", name) for name in data.text_columns)
        return (*texts_of, *(("label", name) for name in data.label_columns))


class ClassificationChecks(LabelledTextChecks):
    """Texts are text, and labels are few and the same in both splits."""

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raise DataError for values that are no texts or labels."""
        if field == "label":
            try:
                labels.read(rows, name, source.shown)
            except DataError as error:
                raise DataError(f"{error}{_problem_meant(rows.values(name))}") from None
        else:
            texts.read(rows, name, source.shown, may_be_empty=True)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """Training labels are classes, and evaluation rows have no others."""
        assert isinstance(data, LabelledTexts)
        if len(data.label_columns) > 1:
            return  # the data section is refused for it
        (column,) = data.label_columns
        counts = {split: Counter(labels.read(rows, column, split)) for split, rows in found.items()}
        train, held_back = counts.get("train"), counts.get("eval", Counter())
        if not train:
            return
        if message := _why_no_classes(train):
            yield "label", f"{data.train.shown} {message}"
        elif unknown := sorted(held_back.keys() - train.keys()):
            rows, known = held_back[unknown[0]], listed(sorted(train))
            yield (
                "label",
                f"{data.eval.shown} has the label {shown(unknown[0])} ({rows} rows), which is not"
                f" among the training labels ({known})",
            )
        if isinstance(data, ClassificationData):
            yield from unknown_labels(data, tuple(train))


CHECKS = ClassificationChecks()


def _problem_meant(values: Sequence[object]) -> str:
    """A clause that names the problem of text-classification that such values are for."""
    if any(isinstance(value, list) for value in values):
        return "; text-classification learns several labels for a row with problem: multi-label"
    if labels.are_fractions(values):
        return "; text-classification learns numbers with problem: regression"
    return ""


def _why_no_classes(counts: "Counter[str]") -> str:
    """Why the training labels are no classes to tell apart; empty if they are."""
    if len(counts) == 1:
        return f"has only the label {shown(next(iter(counts)))}; two are needed"
    if len(counts) > max(MANY, RARELY * counts.total()):
        return (
            f"has {len(counts)} different labels in {counts.total()} rows, which are no classes;"
            " name a column with few different values"
        )
    return ""
