"""The fit stage: train the winner with Ray Train."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.training import checkpoint
from jobs.training.checkpoint import Shelf
from jobs.training.config import TrainingConfig
from jobs.training.events import Evaluated, Event, Metered, OutOfMemory, Started, Stepped, Stopped
from jobs.training.loop import Report, train
from orchestrator.decisions.resolve import with_smaller_micro_batch
from orchestrator.records.receipt import FitResult
from orchestrator.stages.group import stream


@dataclass(frozen=True, slots=True)
class FitPayload:
    """What a training worker needs."""

    config: TrainingConfig
    checkpoints: Shelf


@dataclass(slots=True)
class _Gathered:
    """What the events of all attempts told."""

    started: Started | None = None
    speed: Metered | None = None
    ran_out: bool = False
    stopped_at: int | None = None
    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)

    def take(self, event: Event, metric: str) -> None:
        """Keep what the result needs; a step done again counts once."""
        match event:
            case Started():
                self.started = self.started or event
            case Stepped():
                self.losses[event.step] = event.loss
            case Evaluated():
                self.evaluations[event.step] = event.metrics[metric]
            case Metered():
                self.speed = event
            case Stopped():
                self.stopped_at = event.step
            case OutOfMemory():
                self.ran_out = True


def fit(
    config: TrainingConfig,
    placement: Placement,
    checkpoints: Shelf,
    on_event: Callable[[Event], None],
    on_smaller: Callable[[TrainingConfig], None],
) -> FitResult:
    """Train from the newest whole checkpoint, or from the start.

    After running out of memory, new processes go on with a smaller micro batch and the same global
    batch; `on_smaller` is told.
    """
    begin = time.monotonic()
    gathered = _Gathered()
    while True:
        gathered.ran_out = False
        try:
            payload = FitPayload(config, checkpoints)
            events = stream(work, payload, placement, name="fit", storage=checkpoints.folder.parent)
            with contextlib.closing(events):
                for event in events:
                    gathered.take(event, config.metrics[0])
                    on_event(event)
            break
        except TrainingError:
            smaller = with_smaller_micro_batch(config) if gathered.ran_out else None
            if smaller is None:
                raise
            config = smaller
            on_smaller(config)
    return _result(gathered, config, checkpoints, time.monotonic() - begin)


def work(payload: FitPayload, report: Report) -> None:
    """Train in one worker of the group."""
    train(payload.config, report, payload.checkpoints)


def _result(
    gathered: _Gathered, config: TrainingConfig, checkpoints: Shelf, duration_s: float
) -> FitResult:
    started, reference = gathered.started, checkpoint.latest(checkpoints)
    last = gathered.stopped_at or (started.total_steps if started else 0)
    if started is None or reference is None or reference.step < last:
        raise TrainingError("training ended without its last checkpoint; run again with --resume")
    return FitResult(
        checkpoint=reference,
        labels=started.labels,
        steps=started.total_steps,
        stopped_at=gathered.stopped_at,
        duration_s=duration_s,
        resumed_from=started.first_step,
        losses=tuple(gathered.losses.items()),
        evaluations=tuple(gathered.evaluations.items()),
        micro_batch_size=config.micro_batch_size,
        speed=gathered.speed,
    )
