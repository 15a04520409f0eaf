"""Fine-tuning of encoder-decoder models as the job specification knows it."""

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from jobs.errors import shown
from jobs.spec.base import SpecModel
from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import FormColumn, RowForm
from jobs.spec.task import Metric, Task
from jobs.spec.text_metrics import TEXT_METRICS


class GenerateSpec(SpecModel):
    """How targets are written for metrics of text and by the endpoint; published with the model.

    What is left out keeps the value of the base model's own generation settings.
    """

    max_new_tokens: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Most tokens of a written target; left out, `max_target_length`."""
    min_new_tokens: Annotated[int | None, Field(ge=0, le=4096)] = None
    """Fewest tokens of a written target."""
    num_beams: Annotated[int | None, Field(ge=1, le=32)] = None
    """Number of drafts that beam search follows; 1 takes the likeliest token each time."""
    length_penalty: float | None = None
    """With several beams: above 0 prefers long targets, below 0 short ones."""
    no_repeat_ngram_size: Annotated[int | None, Field(ge=0, le=64)] = None
    """No sequence of so many tokens is written twice; 0 allows repetition."""


class Seq2SeqData(DataSpec):
    """Rows with a source text and the target text to write for it."""

    source: Column | None = None
    """Column with the text to read."""
    target: Column | None = None
    """Column with the text to write. Evaluation rows may hold a list of texts: the loss is on the
    first, and written text is compared with all of them."""
    prefix: Annotated[str, Field(max_length=1024)] = ""
    """Text put before each source, in training, evaluation and at the endpoint, such as
    `summarize: ` for a T5."""
    max_target_length: Annotated[int, Field(ge=4, le=131072)] = 128
    """Longest target in tokens; longer ones are cut."""
    source_language: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """Language code of the sources, for tokenizers that write one, such as `en_XX` of mBART."""
    target_language: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """Language code of the targets."""
    generate: GenerateSpec = GenerateSpec()
    """How targets are written for metrics of text and by the endpoint."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The column of sources."""
        return () if self.source is None else (self.source,)

    @property
    def text_prefix(self) -> str:
        """The prefix of each source."""
        return self.prefix

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The column of targets."""
        return () if self.target is None else (self.target,)

    @property
    def target_tokens(self) -> int:
        """The longest target."""
        return self.max_target_length

    @property
    def most_new_tokens(self) -> int:
        """Most tokens of a written target."""
        return self.generate.max_new_tokens or self.max_target_length

    def violations(self) -> Iterator[tuple[str, str]]:
        """Both columns are named and differ, and settings do not contradict each other."""
        for name, column in (("source", self.source), ("target", self.target)):
            if column is None:
                yield name, f"is missing; name the column with the {name} text"
        if self.source is not None and self.source == self.target:
            yield "target", f"column {shown(self.target)} is already the source column"
        if (self.source_language is None) != (self.target_language is None):
            yield "", "source_language and target_language belong together; give both or neither"
        fewest = self.generate.min_new_tokens or 0
        if fewest > self.most_new_tokens:
            message = f"min_new_tokens {fewest} is more than max_new_tokens {self.most_new_tokens}"
            yield "generate", message


TEMPLATE = "jobs.tasks.seq2seq/job.yaml"
TEXTS = RowForm(
    columns=(
        FormColumn("source", names=("source", "src"), comment="the text to read"),
        FormColumn("target", names=("target", "tgt"), comment="the text to write", is_input=False),
    ),
    template=TEMPLATE,
)
SUMMARIES = RowForm(
    columns=(
        FormColumn(
            "source", names=("article", "document", "dialogue", "text"), comment="the text to read"
        ),
        FormColumn(
            "target", names=("summary", "highlights"), comment="the text to write", is_input=False
        ),
    ),
    template=TEMPLATE,
    settings=(("prefix", "summarize: "),),
)

TASK = Task(
    name="seq2seq",
    data=Seq2SeqData,
    metrics=(
        Metric("token_accuracy", is_default=True),
        Metric("perplexity", goal="min", is_default=True, highest=math.inf),
        *TEXT_METRICS,
    ),
    other_names=("summarization", "translation", "text2text-generation"),
    auto_class="AutoModelForSeq2SeqLM",
    adapter_type="SEQ_2_SEQ_LM",
    pipeline="text2text-generation",
    training="jobs.tasks.seq2seq.training:TRAINING",
    checks="jobs.tasks.seq2seq.checks:CHECKS",
    endpoint="serve.tasks.seq2seq.endpoint:ENDPOINT",
    activation="token-loss",
    eval_batch=16,
    scores_vocabulary=True,
    gate_rules=("agreement", "perplexity", "rougeL", "bleu", "chrf", "exact_match"),
    serve_fields=(),
    learns_from=(TEXTS, SUMMARIES),
    lengths=(128, 256, 512, 1024),
    usage=(
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("this/folder")\n'
        'model = AutoModelForSeq2SeqLM.from_pretrained("this/folder")\n'
        'prefix = getattr(model.config, "prefix", None) or ""\n'
        'inputs = tokenizer(prefix + "text", return_tensors="pt", truncation=True)\n'
        "print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))"
    ),
)
