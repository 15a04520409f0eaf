"""What training needs to know, with nothing left to decide."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from jobs.spec import task_registry
from jobs.spec.data import TaskData
from jobs.spec.model import ModelSpec
from jobs.spec.train import (
    CheckpointSpec,
    EvalSpec,
    LrScheduleSpec,
    OptimizerSpec,
    Precision,
    Strategy,
)

Device = Literal["cpu", "cuda"]

CHARACTERS_PER_TOKEN = 4.0
"""Of English text in WordPiece, where nothing is tokenised yet."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """One resolved training run; the world size comes from the process group."""

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
    """The first one tells the best checkpoint."""
    checkpoint: CheckpointSpec
    seed: int
    device: Device
    strategy: Strategy = "ddp"
    cpu_offload: bool = False
    gradient_checkpointing: bool = False
    compile: bool = False
    capture: bool = True
    """Whether steps may be captured as CUDA graphs."""
    stop_after_s: float | None = None
    """Seconds of training after which it stops, judged and saved; None to train to the end."""
    accepts_changes: bool = False
    """Whether it goes on from a checkpoint that was trained on other rows."""
    peak_tflops: float | None = None
    """Dense peak of one device in this precision, for the share of it that is used."""


def eval_batch(config: TrainingConfig) -> int:
    """Rows per forward pass when judging."""
    return task_registry.find(config.model.task).eval_batch


TRAINING_CONFIG = TypeAdapter(TrainingConfig)
"""Reads and writes a TrainingConfig as JSON."""
