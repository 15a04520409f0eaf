"""The fit stage: trains the winner with Ray Train, and retries after temporary failures."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.placement import Placement
from jobs.errors import TrainingError
from jobs.spec.resources import WaitSpec
from jobs.spec.train import RetrySpec
from jobs.storage import manifest
from jobs.training import checkpoint, quality
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.events import (
    BestKept,
    Evaluated,
    Event,
    Interrupted,
    Metered,
    Proven,
    Report,
    Started,
    Stepped,
    Stopped,
)
from jobs.training.loop import Leave, train
from orchestrator.decisions import recovery
from orchestrator.decisions.leases import Devices, KeptWorkers, Unqueued
from orchestrator.decisions.recovery import Cause, Failed, GiveUp, Retry
from orchestrator.decisions.resolve import (
    fewer_workers,
    with_less_time,
    with_smaller_micro_batch,
)
from orchestrator.interruption import leave_on_signal
from orchestrator.records.receipt import FitResult
from orchestrator.stages.elastic import Growth, wait_for_devices
from orchestrator.stages.failures import GroupError
from orchestrator.stages.group import DeviceWait, Start, stream
from orchestrator.stages.line import packed
from orchestrator.stages.secrets import Secrets


@dataclass(frozen=True, slots=True)
class Rules:
    """How a fit handles failures and waits, and the secrets of its workers."""

    retry: RetrySpec | None = None
    wait: WaitSpec = field(default_factory=WaitSpec)
    """How long to wait for devices that are busy or lost."""
    hang_after_s: float = math.inf
    """Longest time without a report before the workers count as hung."""
    min_workers: int | None = None
    """Fewest workers to continue with; None to continue only with all."""
    secrets: Secrets = field(default_factory=Secrets)
    """Environment variables of the workers."""
    devices: Devices = field(default_factory=Unqueued)
    """Leases devices to each attempt."""
    workers: KeptWorkers | None = None
    """Those that the run has kept, which train in the first attempt; later ones start others."""


@dataclass(frozen=True, slots=True)
class FitPayload:
    """Arguments of a training worker."""

    config: TrainingConfig
    checkpoints: CheckpointStore


@dataclass(slots=True)
class _Progress:
    """The content of the events of all attempts."""

    started: Started | None = None
    speed: Metered | None = None
    stopped_at: int | None = None
    best: BestKept | None = None
    proof: Proven | None = None
    waited_s: float = 0.0
    """Seconds of waiting for devices, which count neither as duration nor for the time limit."""
    has_left: bool = False
    """Whether the last attempt ended early on request."""
    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)

    def record(self, event: Event, metric: str) -> None:
        """Keep what the result needs; a repeated step replaces its earlier record."""
        match event:
            case Started():
                self.started = self.started or event
            case Stepped():
                self.losses[event.step] = event.loss
            case Evaluated():
                self.evaluations[event.step] = event.metrics[metric]
            case Metered():
                self.speed = event
            case Stopped() | BestKept():
                self._end(event)
            case Proven():
                self.proof = event
            case Interrupted():
                self.has_left = True

    def _end(self, event: Stopped | BestKept) -> None:
        if isinstance(event, Stopped):
            self.stopped_at = event.step
        else:
            self.best = event


def fit(
    config: TrainingConfig,
    placement: Placement,
    checkpoints: CheckpointStore,
    rules: Rules,
    on_event: Callable[[Event], None],
    on_failure: Callable[[Failed, Retry | GiveUp], None],
    log: Callable[[str], None],
) -> FitResult:
    """Train from the newest complete checkpoint, or from the start; retry temporary failures.

    `on_failure` gets each failure and the decision about it; `log` gets sentences for the user.
    Memory that runs out in kept workers does not count as a failure of the settings.
    After SIGTERM or Ctrl-C the workers save and end, and the signal's exception is raised.
    `config.stop_after_s` holds for all attempts together, with the pauses between them and without
    the waits for devices.

    Raises:
        TrainingError: if a failure is permanent or has been retried often enough.
        ClusterError: if lost devices do not return in time.
    """
    begin = time.monotonic()
    progress, failures = _Progress(), list[Failed]()
    wanted, avoid = placement, frozenset[str]()
    placement = _devices(wanted, (), avoid, rules, progress)
    while True:
        growth, grows = Growth(wanted, placement, avoid, rules.devices), False
        is_kept = rules.workers is not None and rules.workers.serves(placement)
        try:
            limited = with_less_time(config, time.monotonic() - begin - progress.waited_s)
            _attempt(limited, placement, checkpoints, rules, progress, on_event, log, growth)
            grows = growth.is_due and progress.has_left  # and has lost no device
            if not grows:
                spent_s = time.monotonic() - begin - progress.waited_s
                return _result(progress, config, checkpoints, spent_s)
        except GroupError as error:
            if is_kept and error.failed.cause is Cause.OUT_OF_MEMORY:
                on_failure(error.failed, Retry())  # in new workers: others may have left it full
                continue
            failures.append(error.failed)
            smaller = with_smaller_micro_batch(config)
            decision = _decide(failures, rules, on_failure, can_shrink=smaller is not None)
            time.sleep(decision.pause_s)
            if decision.smaller and smaller:
                config = smaller
                continue
            avoid = decision.avoid
        counts, before = fewer_workers(config, wanted.workers, rules.min_workers), placement
        placement = _devices(wanted, counts, avoid, rules, progress, regains=not grows)
        if placement.workers != before.workers:
            log(f"continuing with {placement.workers} of {wanted.workers} workers")


def _decide(
    failures: Sequence[Failed],
    rules: Rules,
    on_failure: Callable[[Failed, Retry | GiveUp], None],
    *,
    can_shrink: bool,
) -> Retry:
    """Decide about the last failure and tell it; raises TrainingError if it ends training."""
    decision = recovery.decide(failures, rules.retry, can_shrink=can_shrink)
    on_failure(failures[-1], decision)
    if isinstance(decision, GiveUp):
        reasons = filter(None, (failures[-1].message, decision.reason))
        raise TrainingError("; ".join(reasons)) from None
    return decision


def _devices(
    wanted: Placement,
    counts: Sequence[int],
    avoid: frozenset[str],
    rules: Rules,
    progress: _Progress,
    *,
    regains: bool = True,
) -> Placement:
    """Take devices, as `wait_for_devices` does, and count the wait."""
    begin = time.monotonic()

    def on_wait() -> None:
        if rules.workers:  # another run is to have their devices
            rules.workers.close()

    found = wait_for_devices(
        wanted, counts, avoid, rules.wait, rules.devices, regains=regains, on_wait=on_wait
    )
    progress.waited_s += time.monotonic() - begin
    return found


def _attempt(
    config: TrainingConfig,
    placement: Placement,
    checkpoints: CheckpointStore,
    rules: Rules,
    progress: _Progress,
    on_event: Callable[[Event], None],
    log: Callable[[str], None],
    growth: Growth,
) -> None:
    payload = FitPayload(config, checkpoints)
    progress.has_left = False

    def take(event: Event) -> None:
        if isinstance(event, Started):
            growth.begin()
        progress.record(event, config.metrics[0])
        on_event(event)

    if rules.workers and rules.workers.serves(placement):
        with leave_on_signal(rules.workers.leave, log), growth.watched(rules.workers.leave):
            _in_kept_workers(rules.workers, payload, rules.hang_after_s, take)
        return
    if rules.workers:
        rules.workers.close()
    leave = threading.Event()
    start = Start(
        rules.secrets.bound_to(work),
        payload,
        placement,
        name="fit",
        storage=checkpoints.folder.parent,
        leave=leave,
        silence_s=rules.hang_after_s,
    )
    device_wait = DeviceWait(rules.wait.timeout.total_seconds(), log)
    events = stream(start, device_wait)
    try:
        with leave_on_signal(leave, log), growth.watched(leave), contextlib.closing(events):
            for event in events:
                take(event)
    finally:  # also of an attempt that fails before it has started
        progress.waited_s += device_wait.waited_s


def _in_kept_workers(
    workers: KeptWorkers, payload: FitPayload, silence_s: float, take: Callable[[Event], None]
) -> None:
    """Train in the workers that the run has kept; after a failure they are ended."""
    try:
        workers.line.run(packed(work, payload), take, silence_s=silence_s)
    except BaseException:
        workers.close()
        raise


def work(payload: FitPayload, report: Report, leave: Leave) -> None:
    """Train in one worker of the group, and prove the saved model."""
    train(payload.config, report, payload.checkpoints, leave, proves=True)


def _result(
    progress: _Progress, config: TrainingConfig, checkpoints: CheckpointStore, duration_s: float
) -> FitResult:
    started, reference = progress.started, checkpoint.latest(checkpoints)
    best = progress.best
    ended = best.step if best and best.is_early else None
    last = progress.stopped_at or ended or (started.total_steps if started else 0)
    if started is None or reference is None or reference.step < last:
        raise TrainingError("training ended without its last checkpoint; run again with --resume")
    return FitResult(
        checkpoint=reference,
        labels=started.labels,
        steps=started.total_steps,
        stopped_at=progress.stopped_at,
        best=best,
        duration_s=duration_s - (progress.proof.seconds if progress.proof else 0.0),
        proof=progress.proof,
        resumed_from=started.first_step,
        losses=tuple(progress.losses.items()),
        evaluations=tuple(progress.evaluations.items()),
        micro_batch_size=config.micro_batch_size,
        speed=progress.speed,
        quality=quality.read(Path(reference.path) / manifest.MODEL_DIR),
    )
