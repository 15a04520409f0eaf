"""The fit stage: train the winner with Ray Train."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.training import checkpoint
from jobs.training.config import TrainingConfig
from jobs.training.events import Evaluated, Event, Started, Stepped
from jobs.training.loop import Report, train
from orchestrator.records.receipt import FitResult
from orchestrator.stages.group import stream


@dataclass(frozen=True, slots=True)
class FitPayload:
    """What a training worker needs."""

    config: TrainingConfig
    checkpoints: Path


def fit(
    config: TrainingConfig, placement: Placement, folder: Path, on_event: Callable[[Event], None]
) -> FitResult:
    """Train from the newest whole checkpoint under `folder`, or from the start."""
    begin = time.monotonic()
    started: Started | None = None
    losses: list[tuple[int, float]] = []
    evaluations: list[tuple[int, float]] = []
    payload = FitPayload(config, folder / "checkpoints")
    for event in stream(work, payload, placement, name="fit", storage=folder):
        if isinstance(event, Started):
            started = event
        elif isinstance(event, Stepped):
            losses.append((event.step, event.loss))
        elif isinstance(event, Evaluated):
            evaluations.append((event.step, event.metrics[config.metrics[0]]))
        on_event(event)
    reference = checkpoint.latest(payload.checkpoints)
    if started is None or reference is None or reference.step < started.total_steps:
        raise TrainingError("training ended without its last checkpoint; run again with --resume")
    return FitResult(
        checkpoint=reference,
        labels=started.labels,
        steps=started.total_steps,
        duration_s=time.monotonic() - begin,
        resumed_from=started.first_step,
        losses=tuple(losses),
        evaluations=tuple(evaluations),
    )


def work(payload: FitPayload, report: Report) -> None:
    """Train in one worker of the group."""
    train(payload.config, report, payload.checkpoints)
