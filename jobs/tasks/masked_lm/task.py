"""Continued pre-training of encoders as the job specification knows it."""

import math
from typing import Annotated

from pydantic import Field

from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import FormColumn, RowForm
from jobs.spec.task import Metric, Task


class MaskedData(DataSpec):
    """Plain documents, joined end to end and cut into rows of max_length."""

    text: Column
    """Column with the documents."""
    mask_share: Annotated[float, Field(gt=0, le=0.5)] = 0.15
    """Share of the tokens of each row that are predicted: of these, 80 % are hidden, 10 % are
    replaced by a random token and 10 % are shown."""


DOCUMENTS = RowForm(
    columns=(FormColumn("text", names=("text", "content", "document"), comment="plain documents"),),
    template="jobs.tasks.masked_lm/job.yaml",
    is_whole_table=True,
)

TASK = Task(
    name="masked-lm",
    data=MaskedData,
    metrics=(
        Metric("perplexity", goal="min", is_default=True, highest=math.inf),
        Metric("token_accuracy", is_default=True),
    ),
    other_names=("mlm", "fill-mask"),
    auto_class="AutoModelForMaskedLM",
    adapter_type="",
    pipeline="fill-mask",
    training="jobs.tasks.masked_lm.training:TRAINING",
    checks="jobs.tasks.masked_lm.checks:CHECKS",
    endpoint="serve.tasks.masked_lm.endpoint:ENDPOINT",
    activation="token-loss",
    eval_batch=16,
    scores_vocabulary=True,
    gate_rules=("perplexity",),
    serve_fields=("engine",),
    learns_from=(DOCUMENTS,),
)
