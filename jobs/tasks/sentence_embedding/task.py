"""Sentence embedding as the job specification knows it."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from jobs.errors import listed, shown
from jobs.spec.base import Items
from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import FormColumn, RowForm
from jobs.spec.task import Metric, Task, binomial_noise, fisher_noise

USAGE = """\
from sentence_transformers import SentenceTransformer

SentenceTransformer("this/folder").encode(["text", "another text"])"""


class EmbeddingData(DataSpec):
    """Rows with two texts that mean the same, perhaps with one that does not, or with a score."""

    anchor: Column | None = None
    """Column with a text, such as a question."""
    positive: Column | None = None
    """Column with a text of the same meaning, such as the answer; those of the other rows of a
    batch are its negatives."""
    negative: Column | None = None
    """Column with a text that is near to the anchor and means something else."""
    text: Annotated[Items[Column], Field(min_length=2, max_length=2)] | None = None
    """Two columns with texts to compare, instead of anchor and positive."""
    score: Column | None = None
    """Column with the similarity of the two texts, a number from 0 or -highest_score on."""
    highest_score: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Score of two texts that mean the same, such as 5 for STS; scores are divided by it."""
    pooling: Literal["auto", "mean", "cls"] = "auto"
    """How the vectors of tokens become one: their mean, or the first token's; auto takes that of a
    base for sentence-transformers, and the mean for others."""
    normalize: bool = True
    """Whether vectors have length 1."""
    dimensions: Annotated[Items[Annotated[int, Field(ge=1, le=65536)]], Field(max_length=16)] = ()
    """Numbers of a vector that must suffice by themselves, such as [256, 128, 64] (matryoshka):
    the loss is computed of its first so many numbers too."""
    scale: Annotated[float, Field(gt=0, le=1000)] = 20.0
    """Factor of the cosines in the loss of anchors and positives, the inverse of a temperature."""

    @property
    def roles(self) -> dict[str, str]:
        """The column of each text by the field that names it, in their order."""
        if self.text is not None:
            return {"first": self.text[0], "second": self.text[1]}
        named = {"anchor": self.anchor, "positive": self.positive, "negative": self.negative}
        return {role: column for role, column in named.items() if column is not None}

    @property
    def sequences(self) -> tuple[tuple[str, ...], ...]:
        """Each text is read by itself."""
        return tuple((column,) for column in self.roles.values())

    @property
    def needs_whole_batch(self) -> bool:
        """The rows of a batch are each other's negatives."""
        return self.score is None

    @property
    def variant(self) -> str:
        """Scores are correlated, and positives are ranked."""
        return "scored" if self.score is not None else ""

    def violations(self) -> Iterator[tuple[str, str]]:
        """Either anchor and positive are named, or two texts and their score."""
        ranked = (self.anchor, self.positive, self.negative)
        if (any(ranked) == (self.text is not None or self.score is not None)) or (
            None in (self.anchor, self.positive) and None in (self.text, self.score)
        ):
            yield (
                "",
                "sentence-embedding needs the columns anchor and positive, perhaps with negative,"
                " or text (two columns) and score",
            )
            return
        columns = [*self.roles.values(), *filter(None, [self.score])]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            yield "", f"names the column {shown(twice)} twice; each text has its own column"
        if list(self.dimensions) != sorted(set(self.dimensions), reverse=True):
            falling = sorted(set(self.dimensions), reverse=True)
            yield "dimensions", f"must fall without repeats; write [{listed(map(str, falling))}]"

    def violations_in(self, job: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """A batch of negatives is not split into passes."""
        micro, batch = job.train.micro_batch_size, job.train.global_batch_size
        placements = job.resources.placements if job.resources else ()
        counts = [placement.accelerators.count for _, placement in placements] or [1]
        shares = sorted({batch // count for count in counts})
        if self.needs_whole_batch and micro != "auto" and micro not in shares:
            yield (
                ("train", "micro_batch_size"),
                f"micro batch size {micro} splits the global batch of {batch}, whose rows are each"
                f" other's negatives; use auto, or {' or '.join(map(str, shares))}, and a smaller"
                " global_batch_size if memory is short",
            )


_ANCHOR = FormColumn("anchor", names=("anchor", "query", "question"))
_POSITIVE = FormColumn(
    "positive", names=("positive",), comment="means the same as the anchor", is_input=False
)
_NEGATIVE = FormColumn(
    "negative",
    names=("negative", "hard_negative"),
    comment="is near to the anchor and means something else",
    is_input=False,
)
RANKED_TEMPLATE = "jobs.tasks.sentence_embedding/job.yaml"
RANKED_FORMS = (
    RowForm((_ANCHOR, _POSITIVE, _NEGATIVE), template=RANKED_TEMPLATE),
    RowForm((_ANCHOR, _POSITIVE), template=RANKED_TEMPLATE),
)
SCORED_FORM = RowForm(
    columns=(
        FormColumn("text", counts=(2,), comment="two texts to compare"),
        FormColumn(
            "score",
            names=("score", "similarity", "similarity_score"),
            kinds=("integer", "fraction"),
            comment="how alike they are",
            is_input=False,
        ),
    ),
    template="jobs.tasks.sentence_embedding/scored.yaml",
)

_RANKED = Task(
    name="sentence-embedding",
    data=EmbeddingData,
    metrics=(
        Metric("mrr", is_default=True, noise=binomial_noise, needs_scores=True),
        Metric("recall_at_1", is_default=True, noise=binomial_noise, needs_scores=True),
        Metric("recall_at_10", is_default=True, noise=binomial_noise, needs_scores=True),
    ),
    other_names=("embedding", "sentence-similarity", "feature-extraction"),
    auto_class="AutoModel",
    adapter_type="FEATURE_EXTRACTION",
    pipeline="sentence-similarity",
    training="jobs.tasks.sentence_embedding.training:RANKED",
    checks="jobs.tasks.sentence_embedding.checks:CHECKS",
    endpoint="serve.tasks.sentence_embedding.endpoint:RANKED",
    activation="vector",
    library="sentence-transformers",
    usage=USAGE,
    gate_rules=("agreement", "mrr"),
    ignores=("text", "score", "highest_score"),
    learns_from=RANKED_FORMS,
)

SCORED = dataclasses.replace(
    _RANKED,
    name="sentence-embedding/scored",
    metrics=(
        Metric("spearman", is_default=True, noise=fisher_noise, needs_scores=True),
        Metric("pearson", is_default=True, noise=fisher_noise, needs_scores=True),
    ),
    training="jobs.tasks.sentence_embedding.training:SCORED",
    endpoint="serve.tasks.sentence_embedding.endpoint:SCORED",
    gate_rules=("agreement", "spearman"),
    ignores=("anchor", "positive", "negative", "scale"),
    learns_from=(SCORED_FORM,),
)

TASK = dataclasses.replace(_RANKED, variants=(SCORED,))
