"""The train section: one valid training job, and the defaults that a sweep overrides."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ByteSize, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from jobs.spec import task_registry
from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import Cadence, Duration, Every

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Strategy = Literal["ddp", "zero2", "zero3"]


class _MetricsOfAll:
    """The JSON Schema of a metric's name: those of all tasks."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        names = [name for task in task_registry.every() for name in task.metric_names]
        return {"type": "string", "enum": list(dict.fromkeys(names))}


MetricName = Annotated[str, _MetricsOfAll()]
"""Name of a metric of the job's task."""
Batch = Annotated[int, Field(gt=0, le=1_048_576)]


class OptimizerSpec(SpecModel):
    """How weights are updated."""

    name: Literal["adamw"] = "adamw"
    """The optimizer."""
    lr: Annotated[float, Field(gt=0, le=10)] = 3.0e-5
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Decoupled weight decay, not applied to biases and normalisation weights."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this global norm."""


class LrScheduleSpec(SpecModel):
    """How the learning rate moves over the run."""

    type: Literal["linear", "cosine", "constant"] = "linear"
    """Shape after warm-up."""
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of all optimizer steps over which the rate rises from zero."""


class EvalSpec(SpecModel):
    """When and by what the model is judged."""

    every: Every = Cadence(1.0, "epoch")
    """How often; the end of training is always judged."""
    metrics: Annotated[Items[MetricName], Field(min_length=1)] | None = None
    """Computed over all evaluation rows; by default accuracy and F1 (of class 1 for two classes,
    else macro), for causal-lm token_accuracy and perplexity. distinct_1, distinct_2 and repetition
    are of sampled answers."""


class CheckpointSpec(SpecModel):
    """When training state is saved and how much of it is kept."""

    every: Every = Cadence(timedelta(minutes=5).total_seconds(), "second")
    """How often; the end of training is always saved."""
    keep: Annotated[int, Field(ge=1, le=100)] = 2
    """How many are kept, newest first; the best by the first metric is kept besides."""
    max_size: ByteSize | None = None
    """Room for all that are kept, such as 20GiB: above it the oldest go first, then the best. While
    one is written it comes on top; one that is larger by itself ends the run."""


class RetrySpec(SpecModel):
    """Which failures are retried, and how often."""

    on_events: Items[Literal["preemption", "node_failure", "oom", "hang"]] = ()
    """Causes that are retried."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts in all."""


class TrainSpec(SpecModel):
    """How to train."""

    epochs: Annotated[float, Field(gt=0, le=10_000)] = 3.0
    """Passes over the training rows; may be a fraction."""
    global_batch_size: Batch = 32
    """Samples per optimizer step over all workers: the invariant that no placement changes."""
    micro_batch_size: Batch | Literal["auto"] = "auto"
    """Samples per device and forward pass; accumulation follows. `auto`: the largest that fits."""
    precision: Precision | Literal["auto"] = "auto"
    """`auto` is bf16 where it is native, else fp16 on a GPU; fp32 on a CPU."""
    strategy: Strategy = "ddp"
    """How state is spread over workers."""
    cpu_offload: bool = False
    """Keep optimizer state in host memory (zero2 and zero3 only)."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third more time."""
    compile: bool = False
    """Compile the model's repeated layers with torch.compile: faster steps after up to a minute of
    compiling; GPU only."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How weights are updated."""
    lr_schedule: LrScheduleSpec = LrScheduleSpec()
    """How the learning rate moves."""
    eval: EvalSpec = EvalSpec()
    """When and by what the model is judged."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When training state is saved."""
    retry: RetrySpec | None = None
    """Which failures are retried; left out, all that may pass, three times in all."""
    min_workers: Annotated[int | None, Field(ge=1)] = None
    """Fewest workers to go on with while nodes that were lost are missing: the global batch stays,
    and the rest join when their devices are free again. Left out, training waits for all of them.
    Costs are told as if all were there."""
    hang_after: Duration = timedelta(minutes=30)
    """How long workers may report nothing, no step and no evaluation, before they are taken to
    hang; more than fetching the model or the longest evaluation takes."""
