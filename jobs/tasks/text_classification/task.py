"""Text classification as the job specification knows it."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from jobs.errors import shown
from jobs.spec.base import Items
from jobs.spec.data import Column, DataSpec
from jobs.spec.task import Metric, Task, binomial_noise, fisher_noise


class ClassificationData(DataSpec):
    """Rows with a text, or a pair of texts, and a label."""

    text: Column | Annotated[Items[Column], Field(min_length=2, max_length=2)] | None = None
    """Column with the text, or two columns for sentence pairs."""
    label: Column = "label"
    """Column with the label, an integer or a string."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The one or two columns that hold text."""
        return (self.text,) if isinstance(self.text, str) else self.text or ()

    def violations(self) -> Iterator[tuple[str, str]]:
        """A text column is named, and no column is both input and answer."""
        if self.text is None:
            yield "text", "is missing; name the column, or two for pairs"
        columns = self.text_columns
        if self.label in columns:
            yield "label", f"column {shown(self.label)} is already a text column"
        if len(set(columns)) < len(columns):
            yield "text", f"column {shown(columns[0])} is paired with itself"


TASK = Task(
    name="text-classification",
    data=ClassificationData,
    metrics=(
        Metric("accuracy", is_default=True, noise=binomial_noise),
        Metric("f1", is_default=True, noise=binomial_noise),
        Metric("mcc", noise=fisher_noise),
    ),
    auto_class="AutoModelForSequenceClassification",
    adapter_type="SEQ_CLS",
    pipeline="text-classification",
    training="jobs.tasks.text_classification.training:TRAINING",
    checks="jobs.tasks.text_classification.checks:CHECKS",
    endpoint="serve.tasks.text_classification.endpoint:ENDPOINT",
    activation="softmax",
    gate_rules=("accuracy", "agreement"),
    learns_from="labelled-texts",
    template="jobs.tasks.text_classification/job.yaml",
)
