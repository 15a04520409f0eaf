"""Fine-tuning of causal language models as the job specification knows it."""

import math
from collections.abc import Iterator

from jobs.spec.data import Column, DataSpec
from jobs.spec.task import Metric, Task


class LanguageData(DataSpec):
    """Rows with a prompt and a response, or with a conversation."""

    prompt: Column | None = None
    """Column with the prompt."""
    response: Column | None = None
    """Column with the response, which alone is learnt; joined to the prompt as it is."""
    messages: Column | None = None
    """Column with a conversation, a list of `{role, content}`, instead of prompt and response; what
    the assistant says is learnt."""
    packing: bool = True
    """Put several short samples into one row of max_length, without attention between them; a batch
    counts rows."""

    @property
    def is_packed(self) -> bool:
        """Whether several samples may share a row."""
        return self.packing

    def violations(self) -> Iterator[tuple[str, str]]:
        """Either prompt and response are named, or messages."""
        has_pair = self.prompt is not None and self.response is not None
        has_part = self.prompt is not None or self.response is not None
        if has_part == (self.messages is not None) or has_part != has_pair:
            yield "", "causal-lm needs the columns prompt and response, or the column messages"


TASK = Task(
    name="causal-lm",
    data=LanguageData,
    metrics=(
        Metric("token_accuracy", is_default=True),
        Metric("perplexity", goal="min", is_default=True, highest=math.inf),
        Metric("distinct_1", is_generated=True),
        Metric("distinct_2", is_generated=True),
        Metric("repetition", goal="min", is_generated=True),
    ),
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
    serve_fields=(),
    learns_from="conversations",
    template="jobs.tasks.causal_lm/job.yaml",
    lengths=(128, 256, 512, 1024, 2048),
)
