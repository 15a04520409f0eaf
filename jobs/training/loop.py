"""The training loop: step, judge, save, report. Runs alone, under torchrun or under Ray Train."""

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from jobs.errors import first_line
from jobs.spec import task_registry
from jobs.spec.quantities import Cadence
from jobs.storage import manifest
from jobs.training import checkpoint, publication, state
from jobs.training.checkpoint import Checkpoints, CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.evaluate import evaluate, final_precision, sample_scores
from jobs.training.events import (
    CheckpointRef,
    CheckpointSkipped,
    Evaluated,
    Event,
    Interrupted,
    OutOfMemory,
    Saved,
    Started,
    Stepped,
    Stopped,
    Tokenised,
    WorkersReady,
)
from jobs.training.memory import is_out_of_memory
from jobs.training.meter import Meter
from jobs.training.session import Session, build_session
from jobs.training.world import World, join

Report = Callable[[Event], None]
Leave = Callable[[], bool]
"""Whether to save and end; the main worker's answer counts."""


@dataclass(slots=True)
class Due:
    """Says when something that happens every so often is due; all workers get the same answer."""

    every: Cadence
    steps_per_epoch: int
    world: World
    last_step: int
    last_time: float

    def next_step(self) -> float:
        """The step after which it is due next; infinite when the clock decides."""
        if self.every.unit == "second":
            return math.inf
        per = self.steps_per_epoch if self.every.unit == "epoch" else 1
        interval = max(1.0, self.every.value * per)
        return math.ceil((int(self.last_step / interval) + 1) * interval)

    def check(self, step: int, now: float) -> bool:
        """Whether it is due after `step` steps at monotonic time `now`."""
        if self.every.unit == "second":
            is_due = bool(self.world.broadcast(value=now - self.last_time >= self.every.value))
        else:
            is_due = step >= self.next_step()
        if is_due:
            self.last_step, self.last_time = step, now
        return is_due


def train(
    config: TrainingConfig,
    report: Report,
    checkpoints: CheckpointStore | Path | None = None,
    leave: Leave | None = None,
    *,
    proves: bool = False,
) -> CheckpointRef:
    """Train from the newest whole checkpoint in `checkpoints`, or from the start.

    With `proves` the last checkpoint's model is scored again in a process without our code, and a
    `Proven` says whether it may be published. Only the main worker reports. All workers are given a
    `leave`, or none. Without a folder nothing is saved, and the returned reference has an empty
    path. Running out of memory is reported by the worker it happens to, and raised.
    Raises DataError, ModelError, TrainingError, CheckpointError or StorageError.
    """
    shelf = CheckpointStore(checkpoints) if isinstance(checkpoints, Path) else checkpoints
    with join(config.device) as world:
        tell = report if world.is_main else _silent
        tell(WorkersReady())
        try:
            corpus = load_corpus(config, lambda *done: tell(Tokenised(*done)))
            trained = run(build_session(config, corpus, world), tell, shelf, leave)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                report(OutOfMemory("", first_line(error)))
            raise
        if proves and world.is_main and trained.path and trained.metrics:
            _prove(Path(trained.path), config, world, tell)
        return trained


def _prove(checkpoint: Path, config: TrainingConfig, world: World, report: Report) -> None:
    """Tell whether a checkpoint's model may be published."""
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()  # the other process needs room for the model
    precision = final_precision(config, world)
    found = publication.prove(
        checkpoint / manifest.MODEL_DIR,
        task_registry.find(config.model.task),
        precision,
        config.device,
        report,
    )
    if found:
        report(found)


def run(
    session: Session,
    report: Report,
    checkpoints: CheckpointStore | None,
    leave: Leave | None = None,
) -> CheckpointRef:
    """The loop itself, over a session that is ready."""
    first = _resume(session, checkpoints, report)
    report(_started(session, first))
    saver = Checkpoints(session, checkpoints) if checkpoints else None
    with Meter(session) as meter:
        metrics = _Loop(session, report, meter, saver, leave).run(first)
        report(meter.measured())
    return _finish(session, saver, checkpoints, metrics, report)


class _Loop:
    """Stretches of steps, with what is due between them."""

    def __init__(
        self,
        session: Session,
        report: Report,
        meter: Meter,
        saver: Checkpoints | None,
        leave: Leave | None,
    ) -> None:
        self._session, self._report, self._meter, self._saver = session, report, meter, saver
        self._leave = leave
        self._origin = time.monotonic()
        self._final = final_precision(session.config, session.world)
        # the host stays a stretch ahead of a GPU, which so never waits for it
        self._ahead = 1 if session.world.device.type == "cuda" else 0

    def run(self, first: int) -> dict[str, float]:
        """Train from 0-based step `first` on; returns the metrics of the last evaluation."""
        config, engine = self._session.config, self._session.engine
        schedule = self._session.schedule
        total, per_epoch = schedule.total_steps, schedule.steps_per_epoch
        now = time.monotonic()
        judging = Due(config.eval.every, per_epoch, self._session.world, first, now)
        saving = Due(config.checkpoint.every, per_epoch, self._session.world, first, now)
        step, metrics, is_last = first, dict[str, float](), False
        engine.seek(step)
        while step < total and not is_last:
            if step % per_epoch == 0:
                self._tell(engine.collect())  # results are read with the epoch they belong to
                engine.seek(step)
            stops = (total, step + engine.block, (step // per_epoch + 1) * per_epoch)
            last = int(min(*stops, judging.next_step(), saving.next_step()))
            engine.launch(step, last)
            step = last
            self._tell(engine.collect(ahead=self._ahead))
            now = time.monotonic()
            if step < total and self._must_leave(step):
                self._save(step, {}, is_last=False)
                return metrics
            is_last = step == total or self._is_out_of_time(step, now)
            metrics = self._judge(step, is_due=judging.check(step, now), is_last=is_last)
            if saving.check(step, now) or is_last:
                self._save(step, metrics, is_last=is_last)
        return metrics

    def _is_out_of_time(self, step: int, now: float) -> bool:
        limit_s = self._session.config.stop_after_s
        if limit_s is None or not self._session.world.broadcast(
            value=now - self._origin >= limit_s
        ):
            return False
        self._tell(self._session.engine.collect())
        self._report(Stopped(step))
        return True

    def _must_leave(self, step: int) -> bool:
        if self._leave is None or not self._session.world.broadcast(value=self._leave()):
            return False
        self._tell(self._session.engine.collect())
        self._report(Interrupted(step))
        return True

    def _judge(self, step: int, *, is_due: bool, is_last: bool) -> dict[str, float]:
        if not is_due and not is_last:
            return {}
        self._tell(self._session.engine.collect())
        config = self._session.config
        metrics = evaluate(self._session, self._final if is_last else config.precision)
        self._report(Evaluated(step, metrics, time.monotonic() - self._origin))
        return metrics

    def _save(self, step: int, metrics: dict[str, float], *, is_last: bool) -> None:
        self._tell(self._session.engine.collect())  # refuses weights after a bad loss
        if self._saver:
            scores = sample_scores(self._session, self._final) if is_last else None
            for event in self._saver.save(step, metrics, scores):
                self._report(event)

    def _tell(self, results: Sequence[Stepped]) -> None:
        self._meter.results += results
        self._meter.wall_s = time.monotonic() - self._origin if results else self._meter.wall_s
        elapsed, events = time.monotonic() - self._origin, list[Stepped]()
        for result in reversed(results):  # each ended as long ago as those after it took
            events.append(dataclasses.replace(result, elapsed_s=elapsed))
            elapsed -= result.seconds
        for event in reversed(events):
            self._report(event)


def _resume(session: Session, shelf: CheckpointStore | None, report: Report) -> int:
    found = None
    if shelf and session.world.is_main:
        found = checkpoint.latest(shelf, lambda text: report(CheckpointSkipped(text)))
    found = session.world.gather(found)[0]
    if shelf is None or found is None:
        return 0
    state.restore(session, checkpoint.at_hand(found, shelf))
    return int(found.step)


def _started(session: Session, first: int) -> Started:
    corpus, engine = session.corpus, session.engine
    return Started(
        total_steps=session.schedule.total_steps,
        first_step=first,
        train_rows=len(corpus.train),
        eval_rows=len(corpus.eval),
        labels=corpus.label_names,
        mode=engine.mode,
        left_out=corpus.left_out,
        remarks=session.remarks,
    )


def _finish(
    session: Session,
    saver: Checkpoints | None,
    shelf: CheckpointStore | None,
    metrics: dict[str, float],
    report: Report,
) -> CheckpointRef:
    saved: list[Saved] = saver.finish() if saver else []
    for event in saved:
        report(event)
    session.world.broadcast(value=0)  # nobody leaves before the last checkpoint is whole
    total = session.schedule.total_steps
    if not shelf:
        return CheckpointRef("", total, metrics)
    return checkpoint.latest(shelf) or CheckpointRef("", total, metrics)


def _silent(_: Event) -> None:
    """Only the main worker reports."""
