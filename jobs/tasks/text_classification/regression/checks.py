"""Checks the texts and numbers of local rows before anything is trained."""

from collections.abc import Iterator, Mapping

from jobs.errors import shown
from jobs.spec.data import DataSpec, SourceSpec
from jobs.tasks.text_classification.checks import LabelledTextChecks
from jobs.tasks.text_classification.regression import targets
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.data import texts
from jobs.training.data.table import Table


class RegressionChecks(LabelledTextChecks):
    """Texts are text, and the numbers are finite and not all the same."""

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raises DataError for values that are no texts or finite numbers."""
        if field == "label":
            targets.read_column(rows, name, source.shown)
        else:
            texts.read(rows, name, source.shown, may_be_empty=True)

    def across_splits(
        self, data: DataSpec, found: Mapping[str, Table]
    ) -> Iterator[tuple[str, str]]:
        """The numbers of the training rows differ."""
        assert isinstance(data, ClassificationData)
        train = found.get("train")
        for name in data.label_columns if train is not None and len(train) else ():
            assert train is not None
            if message := why_constant(targets.read_column(train, name, data.train.shown)):
                yield "label", f"{data.train.shown}: column {shown(name)} {message}"


def why_constant(numbers: list[float]) -> str:
    """Returns why numbers cannot be learnt; empty if they differ."""
    if min(numbers) == max(numbers):
        return f"holds {numbers[0]:g} in every row; there is nothing to learn"
    return ""


CHECKS = RegressionChecks()
