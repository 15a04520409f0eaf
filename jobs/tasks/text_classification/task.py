"""Text classification as the job specification knows it: one label, several labels, or numbers."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from jobs.errors import listed, shown
from jobs.spec.base import Items
from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import ColumnKind, FormColumn, RowForm
from jobs.spec.task import Metric, Task, binomial_noise, fisher_noise

Problem = Literal["single-label", "multi-label", "regression"]
ClassName = Annotated[str | int, Field(union_mode="left_to_right")]
PositiveNumber = Annotated[float, Field(gt=0)]


class LabelledTexts(DataSpec):
    """Rows with a text, or a pair of texts, and what is to be said of it."""

    text: Column | Annotated[Items[Column], Field(min_length=2, max_length=2)] | None = None
    """Column with the text, or two columns for sentence pairs."""
    label: Column | Annotated[Items[Column], Field(min_length=2, max_length=4096)] = "label"
    """Column with the label, an integer or a string. With `problem: multi-label`, a column of
    lists, or of text with a `separator`, or several columns that hold 1 for rows with the label of
    their name and 0 for others. With `problem: regression`, a column of numbers, or several."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The one or two columns that hold text."""
        return (self.text,) if isinstance(self.text, str) else self.text or ()

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold labels or numbers."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def takes_label_columns(self) -> bool:
        """Whether several columns may hold what is to be learnt."""
        return False

    def violations(self) -> Iterator[tuple[str, str]]:
        """A text column is named, two differ, and one column holds a single label."""
        if self.text is None:
            yield "text", "is missing; name the column, or two for pairs"
        columns, answers = self.text_columns, self.label_columns
        if len(set(columns)) < len(columns):
            yield "text", f"column {shown(columns[0])} is paired with itself"
        if len(answers) > 1 and not self.takes_label_columns:
            yield "label", f"names {len(answers)} columns, and a row has one label; name one column"

    def violations_in(self, job: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """No column holds both input and answer, and none is listed twice."""
        seen: set[str] = set()
        for index, name in enumerate(self.label_columns):
            item = () if isinstance(self.label, str) else (index,)
            if name in self.text_columns:
                yield ("data", "label", *item), f"column {shown(name)} is already a text column"
            if name in seen:
                yield ("data", "label", *item), f"column {shown(name)} is listed twice; remove one"
            seen.add(name)


class ClassificationData(LabelledTexts):
    """Rows with a text, or a pair of texts, and a label, several labels, or numbers."""

    problem: Problem = "single-label"
    """What is learnt: one label of several for each row, any number of labels for each row, or
    numbers."""
    separator: Annotated[str, Field(min_length=1, max_length=8)] | None = None
    """Text between the labels of a row, such as `,`; only with `problem: multi-label`."""
    positive: ClassName | None = None
    """Label that precision, recall, f1 and roc_auc are of. By default the second of two labels;
    with more labels, they are means over all of them. Only with `problem: single-label`."""
    class_weights: Literal["balanced"] | dict[ClassName, PositiveNumber] | None = None
    """Weights of the labels in the loss. With one label for each row, `balanced` gives a label rows
    / (labels * rows with it); a label without a weight has 1. With several labels, it is the weight
    of the rows that have the label: `balanced` is the number of rows without it for each row
    with it."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread evenly over all labels; not for a regression."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a regression, of standardised targets: the squared error, or huber, which is linear
    for errors above one standard deviation, so that outliers count less."""

    @property
    def variant(self) -> str:
        """The problem, unless it is that of the task itself."""
        return "" if self.problem == "single-label" else self.problem

    @property
    def takes_label_columns(self) -> bool:
        """Whether several columns may hold what is to be learnt."""
        return self.problem != "single-label"

    def violations(self) -> Iterator[tuple[str, str]]:
        """Options belong to the problem."""
        yield from super().violations()
        for field, problems in OPTIONS.items():
            value = getattr(self, field)
            if value != type(self).model_fields[field].default and self.problem not in problems:
                wanted = " or ".join(problems)
                yield field, f"is for problem: {wanted}; the problem is {self.problem}"
        if self.separator is not None and len(self.label_columns) > 1:
            yield "separator", "splits one column, and data.label names several; remove one of both"
        if self.separator is not None and not self.separator.strip():
            yield "separator", "must not be blank, because labels may hold spaces"


OPTIONS: dict[str, tuple[Problem, ...]] = {
    "separator": ("multi-label",),
    "positive": ("single-label",),
    "class_weights": ("single-label", "multi-label"),
    "label_smoothing": ("single-label", "multi-label"),
    "loss": ("regression",),
}
"""Problems that each option is for."""


def _others(problem: Problem) -> tuple[str, ...]:
    """Options that are for other problems."""
    return tuple(field for field, problems in OPTIONS.items() if problem not in problems)


def unknown_labels(data: ClassificationData, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Fields that name labels which no training row has, each with a sentence."""
    known = listed(names)
    if data.positive is not None and str(data.positive) not in names:
        yield "positive", f"{shown(str(data.positive))} is no label of the training rows ({known})"
    for name in data.class_weights if isinstance(data.class_weights, dict) else ():
        if str(name) not in names:
            yield "class_weights", f"{shown(str(name))} is no label of the training rows ({known})"


def _labelled(template: str, comment: str, *kinds: ColumnKind) -> RowForm:
    """Returns the form of rows whose label column has values of these kinds."""
    text = FormColumn("text", counts=(1, 2), comment="one column, or [first, second] for pairs")
    label = FormColumn("label", kinds=kinds, comment=comment, is_input=False, is_label=True)
    return RowForm((text, label), template=template)


_FOLDER = "text_classification"
_SINGLE = Task(
    name="text-classification",
    data=ClassificationData,
    metrics=(
        Metric("accuracy", is_default=True, noise=binomial_noise),
        Metric("f1", is_default=True, noise=binomial_noise),
        Metric("mcc", noise=fisher_noise),
        Metric("balanced_accuracy", noise=binomial_noise),
        Metric("precision", noise=binomial_noise),
        Metric("recall", noise=binomial_noise),
        Metric("f1_macro", noise=binomial_noise),
        Metric("f1_weighted", noise=binomial_noise),
        Metric("roc_auc", noise=binomial_noise, needs_scores=True),
        Metric("ece", goal="min"),
    ),
    other_names=("classification", "sequence-classification", "regression", "multi-label"),
    auto_class="AutoModelForSequenceClassification",
    adapter_type="SEQ_CLS",
    pipeline="text-classification",
    training=f"jobs.tasks.{_FOLDER}.training:TRAINING",
    checks=f"jobs.tasks.{_FOLDER}.checks:CHECKS",
    endpoint=f"serve.tasks.{_FOLDER}.endpoint:ENDPOINT",
    activation="softmax",
    gate_rules=("accuracy", "agreement"),
    learns_from=(
        _labelled(f"jobs.tasks.{_FOLDER}/job.yaml", "$labels", "text", "integer", "number"),
    ),
    ignores=_others("single-label"),
)

MULTI_LABEL = dataclasses.replace(
    _SINGLE,
    name="text-classification/multi-label",
    metrics=(
        Metric("f1_micro", is_default=True, noise=binomial_noise),
        Metric("f1_macro", is_default=True, noise=binomial_noise),
        Metric("f1_samples", noise=binomial_noise),
        Metric("exact_match", noise=binomial_noise),
        Metric("average_precision", noise=binomial_noise, needs_scores=True),
        Metric("roc_auc", noise=binomial_noise, needs_scores=True),
        Metric("ece", goal="min"),
    ),
    training=f"jobs.tasks.{_FOLDER}.multi_label.training:TRAINING",
    checks=f"jobs.tasks.{_FOLDER}.multi_label.checks:CHECKS",
    endpoint=f"serve.tasks.{_FOLDER}.multi_label.endpoint:ENDPOINT",
    activation="sigmoid",
    gate_rules=("f1_micro", "agreement"),
    learns_from=(
        _labelled(f"jobs.tasks.{_FOLDER}.multi_label/job.yaml", "lists of labels: $labels", "list"),
    ),
    ignores=_others("multi-label"),
)

REGRESSION = dataclasses.replace(
    MULTI_LABEL,
    name="text-classification/regression",
    metrics=(
        Metric("rmse", goal="min", is_default=True, highest=math.inf),
        Metric("r2", is_default=True),
        Metric("mse", goal="min", highest=math.inf),
        Metric("mae", goal="min", highest=math.inf),
        Metric("pearson", noise=fisher_noise),
        Metric("spearman", noise=fisher_noise, needs_scores=True),
    ),
    training=f"jobs.tasks.{_FOLDER}.regression.training:TRAINING",
    checks=f"jobs.tasks.{_FOLDER}.regression.checks:CHECKS",
    endpoint=f"serve.tasks.{_FOLDER}.regression.endpoint:ENDPOINT",
    activation="identity",
    gate_rules=("rmse",),
    learns_from=(_labelled(f"jobs.tasks.{_FOLDER}.regression/job.yaml", "a number", "fraction"),),
    ignores=_others("regression"),
)

TASK = dataclasses.replace(_SINGLE, variants=(MULTI_LABEL, REGRESSION))
