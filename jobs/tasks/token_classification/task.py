"""Token classification as the job specification knows it."""

from collections.abc import Iterator

from jobs.spec.data import Column, DataSpec
from jobs.spec.row_form import FormColumn, RowForm
from jobs.spec.task import Metric, Task, binomial_noise


class TokenData(DataSpec):
    """Rows with tokens and their tags, or with a text and its entities."""

    tokens: Column = "tokens"
    """Column with the list of a sentence's tokens; the first column of a .conll file."""
    tags: Column = "tags"
    """Column with the tag of each token, in the scheme BIO, IOB1, BIOES or BILOU; the last column
    of a .conll file, whose columns between are named by their number, from 2."""
    text: Column | None = None
    """Column with the text, instead of tokens and tags."""
    spans: Column | None = None
    """Column with the entities of the text, a list of `{start, end, label}` in characters, `end`
    excluded; they must not overlap."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The column of texts; none for rows of tokens."""
        return () if self.text is None else (self.text,)

    def violations(self) -> Iterator[tuple[str, str]]:
        """Tokens and tags are named, or text and spans."""
        given = self.model_fields_set
        if (self.text is None) != (self.spans is None):
            field, other = ("text", "spans") if self.text is None else ("spans", "text")
            yield field, f"is missing; `{other}` needs it"
        elif self.text is not None and (extra := sorted(given & {"tokens", "tags"})):
            yield (
                extra[0],
                "cannot be named beside text and spans; name either tokens and tags, or those two",
            )
        elif self.text is None and self.tokens == self.tags:
            yield "tags", f"column {self.tags!r} is already the tokens'"
        elif self.text is not None and self.text == self.spans:
            yield "spans", f"column {self.spans!r} is already the text"


TEMPLATE = "jobs.tasks.token_classification/job.yaml"
TOKENS = RowForm(
    columns=(
        FormColumn("tokens", names=("tokens", "words"), kinds=("list",), comment="lists of tokens"),
        FormColumn(
            "tags",
            names=("tags", "ner_tags", "ner", "labels"),
            kinds=("list",),
            comment="$labels",
            is_input=False,
            is_label=True,
        ),
    ),
    template=TEMPLATE,
)
SPANS = RowForm(
    columns=(
        FormColumn("text", names=("text", "sentence", "content")),
        FormColumn(
            "spans",
            names=("spans", "entities"),
            kinds=("spans",),
            comment="$labels",
            may_have_any_name=True,
            is_input=False,
            is_label=True,
        ),
    ),
    template=TEMPLATE,
)

TASK = Task(
    name="token-classification",
    data=TokenData,
    metrics=(
        Metric("f1", is_default=True, noise=binomial_noise),
        Metric("precision", is_default=True, noise=binomial_noise),
        Metric("recall", is_default=True, noise=binomial_noise),
        Metric("f1_macro", noise=binomial_noise),
        Metric("accuracy", noise=binomial_noise),
    ),
    other_names=("ner", "token-cls"),
    auto_class="AutoModelForTokenClassification",
    adapter_type="TOKEN_CLS",
    pipeline="token-classification",
    pipeline_options=(("aggregation_strategy", "first"),),
    training="jobs.tasks.token_classification.training:TRAINING",
    checks="jobs.tasks.token_classification.checks:CHECKS",
    endpoint="serve.tasks.token_classification.endpoint:ENDPOINT",
    activation="token-softmax",
    gate_rules=("f1", "agreement"),
    serve_fields=("engine", "fronts"),
    learns_from=(TOKENS, SPANS),
)
