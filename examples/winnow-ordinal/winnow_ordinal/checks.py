"""Checks the texts and levels of local rows before anything is trained."""

from jobs.errors import DataError, shown
from jobs.spec.data import SourceSpec
from jobs.tasks.text_classification.checks import ClassificationChecks
from jobs.training.data import labels
from jobs.training.data.table import Table


class OrdinalChecks(ClassificationChecks):
    """Labels are whole numbers."""

    def check_column(self, field: str, name: str, source: SourceSpec, rows: Table) -> None:
        """Raise DataError for values that are no texts or whole numbers."""
        super().check_column(field, name, source, rows)
        if field == "label":
            for number, level in enumerate(labels.read(rows, name, source.shown), 1):
                if not labels.INTEGER.fullmatch(level):
                    raise DataError(
                        f"{source.shown} row {number}: column {shown(name)} holds {shown(level)};"
                        " ordinal-regression takes whole numbers"
                    )


CHECKS = OrdinalChecks()
