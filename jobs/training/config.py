"""The complete configuration of a training run, in which every choice is resolved."""

import hashlib
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from jobs.spec import task_registry
from jobs.spec.data import TaskData
from jobs.spec.model import ModelSpec
from jobs.spec.train import (
    CheckpointSpec,
    EarlyStoppingSpec,
    EvalSpec,
    LrScheduleSpec,
    OptimizerSpec,
    Precision,
    Strategy,
)

Device = Literal["cpu", "cuda"]

CHARACTERS_PER_TOKEN = 4.0
"""Average of English text in WordPiece; an estimate before the text is tokenised."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """One resolved training run; the number of workers is that of the process group."""

    model: ModelSpec
    data: TaskData
    """File paths are absolute."""
    epochs: float
    global_batch_size: int
    micro_batch_size: int
    """Samples per worker and forward pass; divides global_batch_size / workers."""
    precision: Precision
    optimizer: OptimizerSpec
    lr_schedule: LrScheduleSpec
    eval: EvalSpec
    metrics: tuple[str, ...]
    """The first metric selects the best checkpoint."""
    checkpoint: CheckpointSpec
    seed: int
    device: Device
    early_stopping: EarlyStoppingSpec | None = None
    strategy: Strategy = "ddp"
    cpu_offload: bool = False
    gradient_checkpointing: bool = False
    compile: bool = False
    capture: bool = True
    """Whether steps may be captured as CUDA graphs."""
    stop_after_s: float | None = None
    """Training stops, evaluates and saves after these seconds; None to train all steps."""
    accepts_changes: bool = False
    """Whether training may resume from a checkpoint of other rows or other settings."""
    peak_tflops: float | None = None
    """Dense peak of one device in this precision, to compute MFU; None if it is unknown."""

    def __post_init__(self) -> None:
        """Names the variant of the task that the data section chooses in `model.task`."""
        name = task_registry.chosen(self.model.task, self.data.variant).name
        if name != self.model.task:
            model = self.model.model_copy(update={"task": name})
            object.__setattr__(self, "model", model)


def eval_batch(config: TrainingConfig) -> int:
    """Returns the rows of a forward pass in evaluations."""
    return task_registry.find(config.model.task).eval_batch


def learning_digest(config: TrainingConfig) -> str:
    """Returns a digest of the settings that decide what is learnt from the same rows and base."""
    settings = (
        config.optimizer.model_dump_json(),
        config.lr_schedule.model_dump_json(),
        config.epochs,
        config.global_batch_size,
        config.precision,
        config.seed,
        config.data.model_dump_json(exclude={"train", "eval"}),
        config.model.dropout,
        config.model.adapter
        and config.model.adapter.model_dump_json(exclude={"merge"}, exclude_none=True),
    )
    return hashlib.sha256(repr(settings).encode()).hexdigest()


TRAINING_CONFIG = TypeAdapter(TrainingConfig)
"""Reads and writes a TrainingConfig as JSON."""
