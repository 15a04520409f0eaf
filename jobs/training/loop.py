"""The training loop: step, judge, save, report. Runs alone, under torchrun or under Ray Train."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobs.spec.quantities import Cadence
from jobs.training import batches, checkpoint
from jobs.training.config import TrainingConfig
from jobs.training.events import CheckpointRef, Evaluated, Event, Saved, Started, Stepped
from jobs.training.session import (
    FINAL_PRECISION,
    Corpus,
    Session,
    build_session,
    evaluate,
    load_corpus,
    train_step,
)
from jobs.training.world import World, join

Report = Callable[[Event], None]


@dataclass(slots=True)
class Due:
    """Says when something that happens every so often is due; all workers get the same answer."""

    every: Cadence
    steps_per_epoch: int
    world: World
    last_step: int
    last_time: float

    def check(self, step: int, now: float) -> bool:
        """Whether it is due after `step` steps at monotonic time `now`."""
        if self.every.unit == "second":
            is_due = bool(self.world.agree(value=now - self.last_time >= self.every.value))
        else:
            per = self.steps_per_epoch if self.every.unit == "epoch" else 1
            interval = max(1.0, self.every.value * per)
            is_due = int(step / interval) > int(self.last_step / interval)
        if is_due:
            self.last_step, self.last_time = step, now
        return is_due


def train(config: TrainingConfig, report: Report, checkpoints: Path | None = None) -> CheckpointRef:
    """Train from the newest whole checkpoint in `checkpoints`, or from the start.

    Only the main worker reports. Without a folder nothing is saved, and the returned reference has
    an empty path. Raises DataError, ModelError or TrainingError.
    """
    with join(config.device) as world:
        corpus = load_corpus(config)
        session = build_session(config, corpus, world)
        return run(session, report if world.is_main else _silent, checkpoints)


def run(session: Session, report: Report, checkpoints: Path | None) -> CheckpointRef:
    """The loop itself, over a session that is ready."""
    first = _resume(session, checkpoints)
    report(_started(session, first))
    origin = time.monotonic()
    per_epoch = batches.steps_per_epoch(len(session.corpus.train), session.config.global_batch_size)
    judging = Due(session.config.eval.every, per_epoch, session.world, first, origin)
    saving = Due(session.config.checkpoint.every, per_epoch, session.world, first, origin)
    metrics: dict[str, float] = {}
    for step in range(first + 1, session.total_steps + 1):
        loss = train_step(session, step - 1)
        elapsed = time.monotonic() - origin
        report(Stepped(step, loss, session.config.global_batch_size, elapsed))
        is_last = step == session.total_steps
        if judging.check(step, time.monotonic()) or is_last:
            metrics = evaluate(session, FINAL_PRECISION if is_last else session.config.precision)
            report(Evaluated(step, metrics, time.monotonic() - origin))
        if checkpoints and (saving.check(step, time.monotonic()) or is_last):
            saved = checkpoint.save(session, step, metrics, checkpoints)
            report(Saved(step, saved.path))
    return _result(session, checkpoints, metrics)


def _resume(session: Session, checkpoints: Path | None) -> int:
    found = checkpoint.latest(checkpoints) if checkpoints else None
    newest = session.world.agree(value=found.step if found else 0)
    if checkpoints is None or found is None or not newest:
        return 0
    checkpoint.restore(session, found)
    return found.step


def _started(session: Session, first: int) -> Started:
    corpus: Corpus = session.corpus
    return Started(
        session.total_steps, first, len(corpus.train), len(corpus.eval), corpus.label_names
    )


def _result(session: Session, checkpoints: Path | None, metrics: dict[str, float]) -> CheckpointRef:
    found = checkpoint.latest(checkpoints) if checkpoints else None
    return found or CheckpointRef("", session.total_steps, metrics)


def _silent(_: Event) -> None:
    """Only the main worker reports."""
