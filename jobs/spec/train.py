"""The train section: one valid training job, and the defaults that a sweep overrides."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ByteSize, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from jobs.spec import task_registry
from jobs.spec.base import Items, SpecModel
from jobs.spec.harness import Harness
from jobs.spec.quantities import Cadence, Duration, Every
from jobs.spec.task import LOSS

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Strategy = Literal["ddp", "zero2", "zero3"]
OptimizerName = Literal["adamw", "adafactor", "sgd", "muon"]
DEFAULT_MOMENTUM = {"sgd": 0.9, "muon": 0.95}
"""Momentum of the optimizers that have one, unless a job gives it."""


class _MetricsOfAll:
    """The JSON Schema of a metric's name: those of all tasks, and others besides."""

    def __init__(self, *others: str) -> None:
        self._others = others

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        names = [name for task in task_registry.kinds() for name in task.metric_names]
        names += self._others
        return {"type": "string", "enum": list(dict.fromkeys(names))}


MetricName = Annotated[str, _MetricsOfAll()]
"""Name of a metric of the job's task."""
Batch = Annotated[int, Field(gt=0, le=1_048_576)]


class OptimizerSpec(SpecModel):
    """How weights are updated."""

    name: OptimizerName = "adamw"
    """`adamw`; `adafactor`, which keeps a row and a column for each matrix in place of two moments
    for each weight; `sgd` with momentum; or `muon`, which updates the matrices in layers
    orthogonally, and all other weights by AdamW at the same rate. adafactor and muon need whole
    matrices, and so the strategy ddp."""
    lr: Annotated[float, Field(gt=0, le=10)] = 3.0e-5
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Weight decay, not applied to biases and normalisation weights: decoupled from the gradient,
    except for sgd, where it is added to the gradient."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this global norm."""
    momentum: Annotated[float | None, Field(ge=0, lt=1)] = None
    """Momentum of sgd (by default 0.9) and muon (0.95)."""
    nesterov: bool = False
    """Nesterov's momentum for sgd; muon always has it."""
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor of the learning rate from each layer to the one below it: the head keeps `lr`, the
    last layer has `lr` times this, and embeddings have the lowest rate."""
    head_lr: Annotated[float | None, Field(gt=0, le=10)] = None
    """Peak learning rate of the task's head, such as a classifier; left out, it is `lr`."""

    @property
    def momentum_or_default(self) -> float:
        """Returns the job's momentum, or the optimizer's default; 0 without momentum."""
        if self.momentum is not None:
            return self.momentum
        return DEFAULT_MOMENTUM.get(self.name, 0.0)


LrScheduleType = Literal["linear", "cosine", "constant", "polynomial", "inverse_sqrt"]
DEFAULT_POWER = 2.0
"""Exponent of a polynomial schedule."""


class LrScheduleSpec(SpecModel):
    """How the learning rate changes over the run."""

    type: LrScheduleType = "linear"
    """Shape of the curve after warm-up: `linear`, `cosine` and `polynomial` fall to `floor` at the
    last step, `inverse_sqrt` falls with the square root of the steps, `constant` stays."""
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of all optimizer steps over which the rate rises from zero."""
    power: Annotated[float | None, Field(gt=0, le=10)] = None
    """Exponent of `polynomial`, by default 2; 1 is a straight line."""
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the peak rate that `linear`, `cosine` and `polynomial` end at."""


class EvalSpec(SpecModel):
    """When the model is evaluated, and with which metrics."""

    every: Every = Cadence(1.0, "epoch")
    """How often; the end of training is always judged."""
    metrics: Annotated[Items[MetricName], Field(min_length=1)] | None = None
    """Computed over all evaluation rows. By default accuracy and f1 for one label a row (f1 of
    `data.positive`, which is the second of two labels; with more, the mean over all), f1_micro and
    f1_macro for several labels, rmse and r2 for numbers; f1, precision and recall for
    token-classification; mrr, recall_at_1 and recall_at_10 for sentence-embedding, with scores
    spearman and pearson; token_accuracy and perplexity for causal-lm, seq2seq and masked-lm;
    reward_accuracy, reward_margin and perplexity (of chosen answers) for preference.
    distinct_1, distinct_2 and repetition are of sampled answers; rouge1, rouge2, rougeL, bleu, chrf
    and exact_match are of text that a seq2seq model or a causal-lm writes for every row."""
    harness: Harness | None = None
    """Tasks of lm-evaluation-harness, such as [gsm8k, hellaswag], that judge the published model
    once; for causal-lm and preference. Their numbers are metrics of the model, which limits and the
    gate of a rollout may name."""

    @property
    def harness_s(self) -> float:
        """Seconds of a budget that are kept for the harness."""
        most = self.harness.max_duration if self.harness else None
        return most.total_seconds() if most else 0.0


class EarlyStoppingSpec(SpecModel):
    """When training ends before its last step, because the model no longer improves."""

    metric: Annotated[str, _MetricsOfAll(LOSS.name)] | None = None
    """A metric of `train.eval.metrics`, or `loss` on the evaluation rows; left out, the first
    metric. Whether more or less is better follows from the metric."""
    patience: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Training ends after this many evaluations in a row that are not better than the best one. The
    weights of the best evaluation are published."""


class CheckpointSpec(SpecModel):
    """When training state is saved and how much of it is kept."""

    every: Every = Cadence(timedelta(minutes=5).total_seconds(), "second")
    """How often the state is saved; it always is at the end of training."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of newest checkpoints that are kept; the best one by the first metric is kept too."""
    max_size: ByteSize | None = None
    """Most bytes that kept checkpoints may take, such as 20GiB: beyond it the oldest are deleted
    first, the best one last. The checkpoint that is being written comes on top; a checkpoint that
    is larger by itself ends the run."""


class RetrySpec(SpecModel):
    """Which failures are retried, and how often."""

    on_events: Items[Literal["preemption", "node_failure", "oom", "hang"]] = ()
    """Causes of failure that are retried."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of attempts, the first one included."""


class TrainSpec(SpecModel):
    """How to train."""

    epochs: Annotated[float, Field(gt=0, le=10_000)] = 3.0
    """Passes over the training rows; may be a fraction."""
    global_batch_size: Batch = 32
    """Samples per optimizer step over all workers; the same on every placement."""
    micro_batch_size: Batch | Literal["auto"] = "auto"
    """Samples per worker and forward pass, from which the number of accumulated passes follows;
    `auto` is the largest that fits."""
    precision: Precision | Literal["auto"] = "auto"
    """`auto` is bf16 where it is native, else fp16 on a GPU; fp32 on a CPU."""
    strategy: Strategy = "ddp"
    """How state is spread over workers: `ddp` copies it, `zero2` shards gradients and optimizer
    state, `zero3` weights too."""
    cpu_offload: bool = False
    """Keep optimizer state in host memory (zero2 and zero3 only)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model's repeated layers with torch.compile: steps are faster after up to a minute
    of compiling, and with an adapter they need less memory. GPUs only. With `auto`, a sweep also
    probes the fastest candidate on a single GPU with compiled steps if all its steps take more than
    10 minutes, and the better one wins; steps on several GPUs, and those of a job without a sweep,
    are not compiled."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How weights are updated."""
    lr_schedule: LrScheduleSpec = LrScheduleSpec()
    """How the learning rate changes over the run."""
    eval: EvalSpec = EvalSpec()
    """When the model is evaluated, and with which metrics."""
    early_stopping: EarlyStoppingSpec | None = None
    """When training ends early; the model is then that of the best evaluation, and not of the last.
    Left out, training always runs to its end."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When training state is saved."""
    retry: RetrySpec | None = None
    """Which failures are retried; left out, every failure that may be temporary, with three
    attempts."""
    min_workers: Annotated[int | None, Field(ge=1)] = None
    """Fewest workers that training continues with after a node is lost: the global batch size
    stays, and the others rejoin when their devices are free again. Left out, training waits for all
    of them. Reported costs assume that all are there."""
    hang_after: Duration = timedelta(minutes=30)
    """Longest time without a report from the workers, neither of a step nor of an evaluation,
    before the run counts as hung; choose more than downloading the model or one evaluation
    takes."""
