"""Applies decisions to a job: changed fields, absolute paths, and the training configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.loader import overrides
from jobs.spec import JobSpec
from jobs.spec.sweep import ProbeSpec
from jobs.spec.train import Precision
from jobs.storage import files
from jobs.training.config import Device, TrainingConfig
from jobs.training.probing.timing import LEAST_WINDOWS, ProbeTiming

GPU_PATIENCE, CPU_PATIENCE = 12, 3
"""Longest time of a probe's phase, as a multiple of its shortest time; then it is unsteady."""

Scalar = int | float | str
Params = Mapping[str, Scalar]
"""Dotted field paths to values, such as `train.optimizer.lr`."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How a configuration runs; of these settings only precision affects what is learnt."""

    micro_batch_size: int
    precision: Precision
    device: Device
    peak_tflops: float | None = None
    """Dense peak of one device in this precision, in TFLOP/s; None if unknown."""
    compile: bool = False
    """Whether steps are compiled where the job says `auto`."""


def with_params(spec: JobSpec, params: Params) -> JobSpec:
    """Returns a copy of the job with some fields changed."""
    values = spec.model_dump(mode="json", exclude_unset=True)
    for path, value in params.items():
        overrides.put(values, path, value)
    return JobSpec.model_validate(values)


def with_absolute_paths(spec: JobSpec, folder: Path) -> JobSpec:
    """Returns a copy with absolute paths; relative paths of this machine start at `folder`."""

    def absolute(path: str) -> str:
        return str((folder / files.expanded(path)).resolve())

    values = spec.model_dump(mode="json", exclude_unset=True)
    for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        if source.is_local or all(files.is_here(path, folder) for path in source.paths):
            found = [absolute(path) for path in source.paths]
            values["data"][split]["path"] = found[0] if isinstance(source.path, str) else found
    if files.is_here(spec.model.base, folder):
        values["model"]["base"] = absolute(spec.model.base)
    harness = spec.train.eval.harness
    if harness and harness.include_path:
        values["train"]["eval"]["harness"]["include_path"] = absolute(harness.include_path)
    return JobSpec.model_validate(values)


def with_smaller_micro_batch(config: TrainingConfig) -> TrainingConfig | None:
    """Returns the configuration with the largest smaller micro batch that divides the present one.

    The global batch stays the same. Returns None for a micro batch of 1, and for a loss that needs
    all rows of the global batch in one pass.
    """
    micro = config.micro_batch_size
    if config.data.needs_whole_batch:
        return None
    smaller = [size for size in range(1, micro // 2 + 1) if micro % size == 0]
    return replace(config, micro_batch_size=smaller[-1]) if smaller else None


def with_less_time(config: TrainingConfig, spent_s: float) -> TrainingConfig:
    """Returns the configuration that stops `spent_s` earlier, if it has a limit of time."""
    if config.stop_after_s is None:
        return config
    return replace(config, stop_after_s=max(0.0, config.stop_after_s - spent_s))


def fewer_workers(config: TrainingConfig, workers: int, least: int | None) -> list[int]:
    """Returns smaller numbers of workers for the same global and micro batch, the largest first.

    They are below `workers` and not below `least`; empty if `least` is None, and for a loss that
    needs all rows of the global batch in one pass.
    """
    if config.data.needs_whole_batch:
        return []
    batch, micro = config.global_batch_size, config.micro_batch_size
    counts = range(workers - 1, (least or workers) - 1, -1)
    return [n for n in counts if batch % (n * micro) == 0]


def probe_timing(spec: JobSpec, execution: Execution) -> ProbeTiming:
    """Returns the timing of a probe: as the job says, else a default by device."""
    timing = spec.sweep.probe if spec.sweep else ProbeSpec()
    on_gpu = execution.device == "cuda"
    warmup_s = timing.warmup.total_seconds() if timing.warmup else (5.0 if on_gpu else 2.0)
    duration_s = timing.duration.total_seconds() if timing.duration else (10.0 if on_gpu else 8.0)
    device_wait = GPU_PATIENCE if on_gpu else CPU_PATIENCE
    return ProbeTiming(
        warmup_s=warmup_s,
        warmup_limit_s=warmup_s * device_wait,
        duration_s=duration_s,
        limit_s=duration_s * device_wait,
        warmup_steps=10 if on_gpu else 3,
        steps=30 if on_gpu else 6,
        window_s=min(2.0, duration_s / LEAST_WINDOWS),
        half_width=0.015 if on_gpu else 0.03,
        silence_s=spec.train.hang_after.total_seconds() if execution.compile else math.inf,
    )


def training_config(spec: JobSpec, execution: Execution, params: Params) -> TrainingConfig:
    """Returns the training configuration of a job with an execution and searched fields."""
    chosen = with_params(spec, params)
    return TrainingConfig(
        model=chosen.model,
        data=chosen.data,
        epochs=chosen.train.epochs,
        global_batch_size=chosen.train.global_batch_size,
        micro_batch_size=execution.micro_batch_size,
        precision=execution.precision,
        optimizer=chosen.train.optimizer,
        lr_schedule=chosen.train.lr_schedule,
        eval=chosen.train.eval,
        metrics=chosen.metrics,
        early_stopping=chosen.train.early_stopping,
        checkpoint=chosen.train.checkpoint,
        seed=chosen.seed,
        device=execution.device,
        peak_tflops=execution.peak_tflops,
        strategy=chosen.train.strategy,
        cpu_offload=chosen.train.cpu_offload,
        gradient_checkpointing=chosen.train.gradient_checkpointing,
        compile=execution.compile if chosen.train.compile == "auto" else chosen.train.compile,
    )
