"""What training needs to know, with nothing left to decide."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from jobs.spec.data import DataSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import (
    CheckpointSpec,
    EvalSpec,
    LrScheduleSpec,
    OptimizerSpec,
    Precision,
)

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """One resolved training run; the world size comes from the process group."""

    model: ModelSpec
    data: DataSpec
    """File paths are absolute."""
    epochs: float
    global_batch_size: int
    micro_batch_size: int
    """Samples per worker and forward pass; divides global_batch_size / workers."""
    precision: Precision
    optimizer: OptimizerSpec
    lr_schedule: LrScheduleSpec
    eval: EvalSpec
    checkpoint: CheckpointSpec
    seed: int
    device: Device


TRAINING_CONFIG = TypeAdapter(TrainingConfig)
"""Reads and writes a TrainingConfig as JSON."""
