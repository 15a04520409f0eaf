"""Ordinal regression as a job file knows it."""

import math

from jobs.spec.task import Metric, Task, binomial_noise
from jobs.tasks.text_classification.task import LabelledTexts


class OrdinalData(LabelledTexts):
    """Rows with a text, or a pair of texts, and a whole number such as 1 to 5 stars."""


TASK = Task(
    name="ordinal-regression",
    data=OrdinalData,
    metrics=(
        Metric("mae", goal="min", is_default=True, highest=math.inf),
        Metric("accuracy", is_default=True, noise=binomial_noise),
        Metric("within_one", noise=binomial_noise),
    ),
    auto_class="AutoModelForSequenceClassification",
    adapter_type="SEQ_CLS",
    pipeline="text-classification",
    training="winnow_ordinal.training:TRAINING",
    checks="winnow_ordinal.checks:CHECKS",
    endpoint="winnow_ordinal.endpoint:ENDPOINT",
    activation="sigmoid",
    gate_rules=("mae",),
)
