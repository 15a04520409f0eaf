"""Preference optimisation of language models as the job specification knows it."""

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from jobs.errors import shown
from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import ColumnKind, FormColumn, RowForm
from jobs.spec.task import Metric, Task, binomial_noise

Loss = Literal["sigmoid", "hinge", "ipo"]


class PreferenceData(DataSpec):
    """Rows with a prompt and two answers to it, of which one is preferred.

    Without `prompt` and `messages`, both answers are whole conversations that begin alike.
    """

    prompt: Column | None = None
    """Column with the prompt; both answers are joined to it as they are."""
    messages: Column | None = None
    """Column with the conversation to answer, a list of `{role, content}`, instead of a prompt."""
    chosen: Column | None = None
    """Column with the preferred answer: a text, or a list of messages."""
    rejected: Column | None = None
    """Column with the other answer, in the same form."""
    beta: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 0.1
    """How strongly the model is held to its base: the factor of log-probability ratios in rewards.
    """
    loss: Loss = "sigmoid"
    """Loss of the margin between both rewards: `sigmoid` is DPO's, `hinge` that of SLiC, and `ipo`
    drives the mean margin of a token to 1 / (2 beta)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of rows whose preference is taken to be wrong (conservative DPO); for sigmoid only."""

    @property
    def sequences(self) -> tuple[tuple[str, ...], ...]:
        """Both answers with their prompt, where these are texts."""
        if self.prompt is None or self.chosen is None or self.rejected is None:
            return ()
        return ((self.prompt, self.chosen), (self.prompt, self.rejected))

    @property
    def sequence_count(self) -> int:
        """Both answers are read by themselves."""
        return 2

    def violations(self) -> Iterator[tuple[str, str]]:
        """Both answers are named, at most one form of prompt, and no column twice."""
        for name in ("chosen", "rejected"):
            if getattr(self, name) is None:
                yield name, f"is missing; name the column with the {name} answer"
        if self.prompt is not None and self.messages is not None:
            yield "messages", "stands beside prompt; name one of them"
        seen: dict[str, str] = {}
        for name in ("prompt", "messages", "chosen", "rejected"):
            column = getattr(self, name)
            if column is not None and column in seen:
                yield name, f"column {shown(column)} is already the {seen[column]} column"
            seen.setdefault(column, name)
        if self.label_smoothing and self.loss != "sigmoid":
            yield "label_smoothing", f"works with loss: sigmoid only; remove it, or {self.loss}"


def _form(*prompt: FormColumn, kind: ColumnKind) -> RowForm:
    """Returns the form of rows with this prompt, or with none, and two answers of a kind."""
    answers = (
        FormColumn(
            "chosen",
            names=("chosen",),
            kinds=(kind,),
            comment="the preferred answer",
            is_input=not prompt,
        ),
        FormColumn("rejected", names=("rejected",), kinds=(kind,), is_input=False),
    )
    return RowForm((*prompt, *answers), template="jobs.tasks.preference/job.yaml")


FORMS = (
    _form(FormColumn("prompt", names=("prompt", "question")), kind="text"),
    _form(
        FormColumn("messages", names=("messages", "prompt"), kinds=("conversation",)), kind="text"
    ),
    _form(FormColumn("messages", names=("prompt",), kinds=("conversation",)), kind="conversation"),
    _form(kind="conversation"),
)
"""Beside answers that are conversations, a column called messages may repeat one of them."""

TASK = Task(
    name="preference",
    data=PreferenceData,
    metrics=(
        Metric("reward_accuracy", is_default=True, noise=binomial_noise),
        Metric("reward_margin", is_default=True, highest=math.inf),
        Metric("perplexity", goal="min", is_default=True, highest=math.inf),
    ),
    other_names=("dpo", "rlhf", "ipo"),
    auto_class="AutoModelForCausalLM",
    adapter_type="CAUSAL_LM",
    pipeline="text-generation",
    training="jobs.tasks.preference.training:TRAINING",
    checks="jobs.tasks.preference.checks:CHECKS",
    endpoint="serve.tasks.causal_lm.endpoint:ENDPOINT",
    activation="token-loss",
    eval_batch=16,
    scores_vocabulary=True,
    gate_rules=("perplexity",),
    engines="text",
    serve_fields=("adapters", "engine", "max_context", "slo.p95_ttft", "slo.p95_tpot"),
    learns_from=FORMS,
    lengths=(128, 256, 512, 1024, 2048),
)
