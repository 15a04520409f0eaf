"""Fine-tuning of causal language models as the job specification knows it."""

import math
from collections.abc import Iterator
from typing import Any

from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import FormColumn, RowForm
from jobs.spec.task import Metric, Task
from jobs.spec.text_metrics import TEXT_METRICS

NEEDS = (
    "causal-lm needs the columns prompt and response, or the column messages, or the column text"
)


class LanguageData(DataSpec):
    """Rows with a prompt and a response, with a conversation, or with a plain document."""

    prompt: Column | None = None
    """Column with the prompt."""
    response: Column | None = None
    """Column with the response, which alone is learnt; joined to the prompt as it is."""
    messages: Column | None = None
    """Column with a conversation, a list of `{role, content}`, instead of prompt and response; what
    the assistant says is learnt. Roles are system, developer, user, assistant and tool; further
    fields, such as `tool_calls`, go to the chat template."""
    tools: Column | None = None
    """Column with the tools that a conversation may call, a list of JSON schemas, for `messages`;
    the chat template writes them."""
    text: Column | None = None
    """Column with plain documents, instead of prompts or conversations: they are joined end to end,
    with the end token behind each, and cut into rows of max_length, all of which is learnt."""
    packing: bool = True
    """Put several short samples into one row of max_length, without attention between them; a batch
    counts rows."""

    @property
    def is_packed(self) -> bool:
        """Whether several samples may share a row."""
        return self.packing and self.text is None  # documents fill their rows already

    def violations(self) -> Iterator[tuple[str, str]]:
        """One of three is named: prompt and response, messages, or text."""
        has_pair = self.prompt is not None and self.response is not None
        has_part = self.prompt is not None or self.response is not None
        chosen = (has_part, self.messages is not None, self.text is not None)
        if sum(chosen) != 1 or has_part != has_pair:
            yield "", NEEDS
        if self.tools is not None and self.messages is None:
            yield "tools", "is for conversations; name their column in messages, or remove it"

    def violations_in(self, job: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Metrics of written text need a response to compare it with."""
        compared = {metric.name for metric in TEXT_METRICS}
        for index, name in enumerate(job.train.eval.metrics or ()):
            if self.text is not None and name in compared:
                message = f"{name} compares what is written with a response, and data.text has none"
                yield ("train", "eval", "metrics", index), f"{message}; remove it"


CONVERSATIONS = RowForm(
    columns=(
        FormColumn(
            "messages",
            names=("messages",),
            kinds=("conversation",),
            comment="lists of {role, content}; what the assistant says is learnt",
            may_have_any_name=True,
        ),
    ),
    template="jobs.tasks.causal_lm/job.yaml",
)
DOCUMENTS = RowForm(
    columns=(FormColumn("text", names=("text", "content", "document"), comment="plain documents"),),
    template="jobs.tasks.causal_lm/documents.yaml",
    is_whole_table=True,
)

TASK = Task(
    name="causal-lm",
    data=LanguageData,
    metrics=(
        Metric("token_accuracy", is_default=True),
        Metric("perplexity", goal="min", is_default=True, highest=math.inf),
        *TEXT_METRICS,
        Metric("distinct_1", is_generated=True),
        Metric("distinct_2", is_generated=True),
        Metric("repetition", goal="min", is_generated=True),
    ),
    other_names=("clm", "sft", "text-generation"),
    auto_class="AutoModelForCausalLM",
    adapter_type="CAUSAL_LM",
    pipeline="text-generation",
    training="jobs.tasks.causal_lm.training:TRAINING",
    checks="jobs.tasks.causal_lm.checks:CHECKS",
    endpoint="serve.tasks.causal_lm.endpoint:ENDPOINT",
    activation="token-loss",
    eval_batch=16,
    scores_vocabulary=True,
    gate_rules=("perplexity",),
    engines="text",
    serve_fields=("adapters", "engine", "max_context", "slo.p95_ttft", "slo.p95_tpot"),
    learns_from=(CONVERSATIONS, DOCUMENTS),
    lengths=(128, 256, 512, 1024, 2048),
)
