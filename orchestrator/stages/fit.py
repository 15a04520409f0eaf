"""The fit stage: train the winner with Ray Train, and go on after failures that may pass."""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.spec.resources import WaitSpec
from jobs.spec.train import RetrySpec
from jobs.training import checkpoint
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.events import (
    Evaluated,
    Event,
    Interrupted,
    Metered,
    Proven,
    Started,
    Stepped,
    Stopped,
)
from jobs.training.loop import Leave, Report, train
from orchestrator.decisions import recovery
from orchestrator.decisions.recovery import Failed, GiveUp, Retry
from orchestrator.decisions.resolve import fewer_workers, with_smaller_micro_batch
from orchestrator.interruption import asked_first
from orchestrator.records.receipt import FitResult
from orchestrator.stages.causes import GroupError
from orchestrator.stages.elastic import Growth, found_again
from orchestrator.stages.group import Patience, Start, stream
from orchestrator.stages.secrets import Secrets


@dataclass(frozen=True, slots=True)
class Rules:
    """What a job says about failures, and what its workers need besides."""

    retry: RetrySpec | None = None
    wait: WaitSpec = field(default_factory=WaitSpec)
    """How long to wait for devices that others took, or that were lost."""
    hang_after_s: float = math.inf
    """How long workers may report nothing."""
    min_workers: int | None = None
    """Fewest to go on with; None for as many as there were."""
    secrets: Secrets = field(default_factory=Secrets)
    """Variables of its workers."""


@dataclass(frozen=True, slots=True)
class FitPayload:
    """What a training worker needs."""

    config: TrainingConfig
    checkpoints: CheckpointStore


@dataclass(slots=True)
class _Gathered:
    """What the events of all attempts told."""

    started: Started | None = None
    speed: Metered | None = None
    stopped_at: int | None = None
    proof: Proven | None = None
    waited_s: float = 0.0
    """For devices that others held, which costs nothing and is no training."""
    has_left: bool = False
    """Whether the last attempt left before its end, as it was asked to."""
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
            case Proven():
                self.proof = event
            case Interrupted():
                self.has_left = True


def fit(
    config: TrainingConfig,
    placement: Placement,
    checkpoints: CheckpointStore,
    rules: Rules,
    on_event: Callable[[Event], None],
    on_failure: Callable[[Failed, Retry | GiveUp], None],
    tell: Callable[[str], None],
) -> FitResult:
    """Train from the newest whole checkpoint, or from the start; go on after what may pass.

    `on_failure` is told of each failure and what is done about it. After a signal the workers save
    and end, which `tell` hears of, and it is raised. Raises TrainingError when the failure is one
    to give up at.
    """
    begin = time.monotonic()
    gathered, failures = _Gathered(), list[Failed]()
    wanted, avoid = placement, frozenset[str]()
    while True:
        growth = Growth(wanted, placement, avoid)
        try:
            _attempt(config, placement, checkpoints, rules, gathered, on_event, tell, growth)
            if not (growth.is_due and gathered.has_left):
                spent_s = time.monotonic() - begin - gathered.waited_s
                return _result(gathered, config, checkpoints, spent_s)
        except GroupError as error:
            failures.append(error.failed)
            smaller = with_smaller_micro_batch(config)
            decision = recovery.decide(failures, rules.retry, can_shrink=smaller is not None)
            on_failure(failures[-1], decision)
            if isinstance(decision, GiveUp):
                words = filter(None, (failures[-1].message, decision.reason))
                raise TrainingError("; ".join(words)) from None
            time.sleep(decision.pause_s)
            if decision.smaller and smaller:
                config = smaller
                continue
            avoid = decision.avoid
        counts = fewer_workers(config, wanted.workers, rules.min_workers)
        before, placement = placement, found_again(wanted, counts, avoid, rules.wait)
        if placement.workers != before.workers:
            tell(f"going on with {placement.workers} of {wanted.workers} workers")


def _attempt(
    config: TrainingConfig,
    placement: Placement,
    checkpoints: CheckpointStore,
    rules: Rules,
    gathered: _Gathered,
    on_event: Callable[[Event], None],
    tell: Callable[[str], None],
    growth: Growth,
) -> None:
    leave, payload = threading.Event(), FitPayload(config, checkpoints)
    gathered.has_left = False
    start = Start(
        rules.secrets.given_to(work),
        payload,
        placement,
        name="fit",
        storage=checkpoints.folder.parent,
        leave=leave,
        silence_s=rules.hang_after_s,
        delayed=_delayed,
    )
    patience = Patience(rules.wait.timeout.total_seconds(), tell)
    events = stream(start, patience)
    with asked_first(leave, tell), growth.watched(leave), contextlib.closing(events):
        for event in events:
            if isinstance(event, Started):
                growth.begin()
                gathered.waited_s += patience.waited_s
            gathered.take(event, config.metrics[0])
            on_event(event)


def _delayed(payload: FitPayload, waited_s: float) -> FitPayload:
    """Ends as early as if it had begun at once, where it has to end at some time."""
    left_s = payload.config.stop_after_s
    if left_s is None:
        return payload
    return replace(
        payload, config=replace(payload.config, stop_after_s=max(0.0, left_s - waited_s))
    )


def work(payload: FitPayload, report: Report, leave: Leave) -> None:
    """Train in one worker of the group."""
    train(payload.config, report, payload.checkpoints, leave, proves=True)


def _result(
    gathered: _Gathered, config: TrainingConfig, checkpoints: CheckpointStore, duration_s: float
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
        duration_s=duration_s - (gathered.proof.seconds if gathered.proof else 0.0),
        proof=gathered.proof,
        resumed_from=started.first_step,
        losses=tuple(gathered.losses.items()),
        evaluations=tuple(gathered.evaluations.items()),
        micro_batch_size=config.micro_batch_size,
        speed=gathered.speed,
    )
