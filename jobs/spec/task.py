"""A task as the job specification knows it: its columns, its metrics, and where its code is.

A task is one value of `Task` in a folder of its own, `jobs/tasks/<name>/task.py`, or in somebody
else's package. Everything outside asks the value, never the task's name.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jobs.errors import shown
from jobs.spec.base import SpecModel
from jobs.spec.row_form import RowForm

Goal = Literal["max", "min"]
EngineKind = Literal["scores", "text"]
"""What the engines do that serve a task: score rows, or write the answers of a language model."""
ServeField = Literal[
    "adapters", "engine", "grpc", "fronts", "max_context", "slo.p95_ttft", "slo.p95_tpot"
]
Activation = Literal["softmax", "sigmoid", "identity", "vector", "token-softmax", "token-loss"]
"""What turns a model's logits into the scores that are kept beside it: a function of the logits of
a row, the softmax of the logits of each token, or the mean loss of the tokens that are trained. A
`vector` is the identity; two models are then compared by the cosines between the vectors of all
rows."""
PER_TOKEN: frozenset[Activation] = frozenset({"token-softmax"})
"""Activations of models with logits for each token: [tokens, labels] of a row, not [labels]."""

VARIANT_MARK = "/"
"""Stands between the name of a task and that of its variant."""
Z95 = 1.96
"""Standard deviations on each side that hold 95 % of a normal distribution."""


def no_noise(value: float, rows: int) -> float:
    """Of metrics of tokens, which are not drawn one by one."""
    return 0.0


def binomial_noise(value: float, rows: int) -> float:
    """Half-width of the 95 % interval of a share of `rows` drawn rows (normal approximation)."""
    return Z95 * math.sqrt(max(0.0, value * (1 - value)) / rows)


def fisher_noise(value: float, rows: int) -> float:
    """Half-width of the 95 % interval of a correlation over `rows` drawn rows (Fisher)."""
    return Z95 * (1 - value**2) / math.sqrt(rows)


@dataclass(frozen=True, slots=True)
class Metric:
    """What a model of a task is judged by."""

    name: str
    goal: Goal = "max"
    """Whether more or less of it is better."""
    is_default: bool = False
    """Whether a model is judged by it where the job names no metrics."""
    highest: float = 1.0
    """No value exceeds it; infinite where there is no such bound."""
    noise: Callable[[float, int], float] = no_noise
    """Half-width of its 95 % interval, of a value and the number of rows that it was judged on."""
    is_generated: bool = False
    """Whether answers must be generated to compute it."""
    compares_rows: bool = False
    """Whether it compares generated text with that of every evaluation row, so that its time grows
    with the rows."""
    needs_scores: bool = False
    """Whether it is computed from the scores of all evaluation rows, which workers then exchange,
    and not from sums."""
    package: str = ""
    """The package of the extra `metrics` that computes it; empty if nothing need be installed."""


LOSS = Metric("loss", goal="min", highest=math.inf)
"""The mean loss on the evaluation rows, which every evaluation computes besides metrics."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a model learns to do."""

    name: str
    """As it stands in `model.task`."""
    data: type[SpecModel]
    """The data section of its jobs, a `jobs.spec.data.DataSpec` with columns and options."""
    metrics: tuple[Metric, ...]
    auto_class: str
    """The class of transformers that loads its models, such as AutoModelForCausalLM."""
    adapter_type: str
    """The task type of its adapters in peft, such as CAUSAL_LM; empty if peft has none, so that
    adapters are merged before they are published."""
    pipeline: str
    """What the hub and `transformers.pipeline` call it."""
    training: str
    """Its torch half, `module:name` of a `jobs.training.task.TaskTraining`."""
    checks: str
    """Its checks of rows, `module:name` of a `jobs.training.data.checks.RowChecks`."""
    endpoint: str
    """How it is served, `module:name` of a `serve.tasks.endpoint.TaskEndpoint`."""
    activation: Activation
    """What the kept scores of its models are."""
    other_names: tuple[str, ...] = ()
    """What other libraries call it, for a hint where a job writes that."""
    library: str = "transformers"
    """The library that the model card names for loading a published folder."""
    usage: str = ""
    """Python code of the model card that loads the folder "this/folder"; by default a pipeline."""
    pipeline_options: tuple[tuple[str, str], ...] = ()
    """Arguments with which a pipeline of transformers answers as the endpoint does."""
    eval_batch: int = 128
    """Rows per forward pass when judging; scores do not depend on it beyond rounding."""
    scores_vocabulary: bool = False
    """Whether a model scores every word of the vocabulary for every token, which takes memory."""
    gate_rules: tuple[str, ...] = ()
    """Rules of a rollout's gate that compare answers of two versions."""
    serve_fields: tuple[ServeField, ...] = ("engine", "grpc", "fronts")
    """Fields of the serve section that its endpoint honours, of those that not all do."""
    engines: EngineKind = "scores"
    """The engines that its endpoint chooses from, if it honours `serve.engine`."""
    learns_from: tuple[RowForm, ...] = ()
    """Forms of rows that `winnow init` writes its first job for."""
    lengths: tuple[int, ...] = (128, 256, 512)
    """Values of max_length that `winnow init` chooses from."""
    ignores: tuple[str, ...] = ()
    """Fields of the data section that this task leaves to its variants, or a variant to others."""
    variants: tuple["Task", ...] = ()
    """Tasks that the data section of this task may choose instead of it: the same columns with
    other labels, metrics or scores. Each is named `<this name>/<variant>`."""

    @property
    def kinds(self) -> tuple["Task", ...]:
        """The task itself and its variants."""
        return (self, *self.variants)

    def variant(self, name: str) -> "Task | None":
        """The task in a variant, or itself for an empty name; None where it has no such variant."""
        wanted = f"{self.name}{VARIANT_MARK}{name}" if name else self.name
        return next((kind for kind in self.kinds if kind.name == wanted), None)

    def metric(self, name: str) -> Metric | None:
        """The metric of a name; None where the task has none."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    @property
    def has_scoring_engines(self) -> bool:
        """Whether its endpoint chooses between engines that score rows."""
        return "engine" in self.serve_fields and self.engines == "scores"

    @property
    def is_decoder(self) -> bool:
        """Whether its models predict the next token of all before it."""
        return self.auto_class == "AutoModelForCausalLM"

    @property
    def peft_class(self) -> str:
        """The class of peft that loads its models with an adapter."""
        features = "AutoPeftModelForFeatureExtraction"
        is_bare = self.auto_class == "AutoModel"
        return features if is_bare else self.auto_class.replace("Auto", "AutoPeft", 1)

    def no_metric(self, name: str) -> str:
        """Returns a sentence that refuses a name that is none of the task's metrics."""
        known = ", ".join(self.metric_names)
        return f"{shown(name)} is not a metric of {self.name}; it has {known}"

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of everything that its models can be judged by."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """Names of what models are judged by where the job names nothing."""
        return tuple(metric.name for metric in self.metrics if metric.is_default)
