"""The training loop: step, evaluate, save, report. Runs alone, under torchrun or Ray Train."""

import dataclasses
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from jobs.errors import first_line
from jobs.spec import task_registry
from jobs.storage import manifest
from jobs.training import checkpoint, state
from jobs.training.best import BestEvaluation, best_of, restore_best
from jobs.training.cadence import CadenceTimer
from jobs.training.checkpoint import CheckpointSaver, CheckpointStore, base_revision
from jobs.training.config import TrainingConfig
from jobs.training.evaluate import evaluate, evaluate_last, final_precision, sample_scores
from jobs.training.events import (
    CheckpointRef,
    CheckpointSkipped,
    Evaluated,
    Event,
    Interrupted,
    OutOfMemory,
    Report,
    Saved,
    Started,
    Stepped,
    Stopped,
    WorkersReady,
)
from jobs.training.meter import Meter
from jobs.training.out_of_memory import is_out_of_memory
from jobs.training.publication import Prover
from jobs.training.quality import QualityReport
from jobs.training.restart import Kept, begun
from jobs.training.session import Session
from jobs.training.world import join

Leave = Callable[[], bool]
"""Returns whether training must save and end; the main worker decides for all."""


def train(
    config: TrainingConfig,
    report: Report,
    checkpoints: CheckpointStore | Path | None = None,
    leave: Leave | None = None,
    *,
    proves: bool = False,
    kept: Kept | None = None,
) -> CheckpointRef:
    """Trains from the newest complete checkpoint in `checkpoints`, or from the start.

    Only the main worker reports events, except OutOfMemory, which the affected worker reports
    before it raises the error. Returns the newest complete checkpoint; the path is empty on other
    workers, and without `checkpoints`, where nothing is saved. `leave` must be given to all workers
    or to none. With `proves`, the last checkpoint's model is scored again in a process without this
    project's code, and `Proven` reports whether it may be published. With `kept`, which all workers
    must have, the session that it holds starts over if it can; else it gets the new session. A
    `report` that raises SystemExit ends training and leaves the session there.

    Raises:
        DataError: if rows cannot be read or used.
        ModelError: if the base model cannot be loaded or used.
        TrainingError: if a loss is not finite, or the checkpoint was trained on other rows.
        CheckpointError: if the checkpoint does not fit the model, or exceeds its largest size.
        StorageError: if the storage cannot be read or written.
    """
    store = CheckpointStore(checkpoints) if isinstance(checkpoints, Path) else checkpoints
    prover = Prover(task_registry.find(config.model.task), config.device)
    with join(config.device) as world, prover:
        proves = proves and world.is_main
        report_main = report if world.is_main else _ignore
        report_main(WorkersReady())
        try:
            session = begun(config, world, report_main, kept, base_revision(config, store, world))
            begin = prover.begin if proves and store else lambda: None
            trained = run(session, report_main, store, leave, begin)
        except Exception as error:
            if kept:
                kept.drop()
            if isinstance(error, RuntimeError | MemoryError) and is_out_of_memory(error):
                report(OutOfMemory("", first_line(error)))
            raise
        if proves and trained.path and trained.metrics:
            gc.collect()
            if world.device.type == "cuda":
                torch.cuda.empty_cache()  # the other process needs memory for the model
            model = Path(trained.path) / manifest.MODEL_DIR
            if found := prover.prove(model, final_precision(config, world), report):
                report(found)
        return trained


def run(
    session: Session,
    report: Report,
    checkpoints: CheckpointStore | None,
    leave: Leave | None = None,
    on_stepped: Callable[[], None] = lambda: None,
) -> CheckpointRef:
    """Runs the training loop over a session, as `train` does; all workers must call it.

    `on_stepped` is called after the last step, before the last checkpoint is complete.
    """
    best = best_of(session.config)
    first = _resume(session, checkpoints, report, best)
    report(_started(session, first))
    saver = CheckpointSaver(session, checkpoints) if checkpoints else None
    with Meter(session) as meter:
        metrics = _Loop(session, report, meter, saver, leave, best).run(first)
        report(meter.measured())
    on_stepped()
    return _finish(session, saver, checkpoints, metrics, report)


class _Loop:
    """Blocks of steps, with evaluations and checkpoints between them."""

    def __init__(
        self,
        session: Session,
        report: Report,
        meter: Meter,
        saver: CheckpointSaver | None,
        leave: Leave | None,
        best: BestEvaluation | None,
    ) -> None:
        self._session, self._report, self._meter, self._saver = session, report, meter, saver
        self._leave, self._best = leave, best
        self._quality: QualityReport | None = None
        self._origin = time.monotonic()
        self._final = final_precision(session.config, session.world)
        # the host launches one block ahead, so that a GPU never waits for it
        self._ahead = 1 if session.world.device.type == "cuda" else 0

    def run(self, first: int) -> dict[str, float]:
        """Trains from the 0-based step `first`; returns the metrics of the last evaluation."""
        config, engine = self._session.config, self._session.engine
        plan, world = self._session.batch_plan, self._session.world
        total, per_epoch = plan.total_steps, plan.steps_per_epoch
        now = time.monotonic()
        evaluation = CadenceTimer(config.eval.every, per_epoch, world, first, now)
        saving = CadenceTimer(config.checkpoint.every, per_epoch, world, first, now)
        step, metrics, is_last = first, dict[str, float](), self._is_over()
        engine.seek(step)
        while step < total and not is_last:
            if step % per_epoch == 0:
                self._report_steps(engine.collect())  # before the plan loads the next epoch
                engine.seek(step)
            stops = (total, step + engine.block, (step // per_epoch + 1) * per_epoch)
            last = int(min(*stops, evaluation.next_step(), saving.next_step()))
            engine.launch(step, last)
            step = last
            self._report_steps(engine.collect(ahead=self._ahead))
            now = time.monotonic()
            if step < total and self._is_interrupted(step):
                self._save(step, {}, is_last=False)
                return metrics
            is_last = step == total or self._is_out_of_time(step, now)
            metrics = self._evaluate(step, is_due=evaluation.check(step, now), is_last=is_last)
            is_best = bool(self._best and metrics and self._best.take(step, metrics))
            if is_last or self._is_over():
                is_last, metrics = True, self._return_to_best(step, metrics)
            if saving.check(step, now) or is_last or is_best:
                self._save(step, metrics, is_last=is_last)
        return metrics

    def _is_over(self) -> bool:
        """Returns whether early stopping ends training, or ended it before this process."""
        return self._best is not None and self._best.is_over

    def _return_to_best(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Restores the best weights if they are not those of `step`; returns their metrics.

        A trial saves no weights, and only needs their metrics.
        """
        best, session = self._best, self._session
        if best is None or best.step == step:
            return metrics
        found = best.metrics
        if self._saver:
            for event in self._saver.finish():
                self._report(event)
            if not restore_best(session, self._saver.store, best, self._report):
                return self._evaluate(step, is_due=True, is_last=True)
            found, self._quality = evaluate_last(session, self._final)
        self._report(best.kept_at(step))
        self._report(Evaluated(best.step, found, time.monotonic() - self._origin))
        return found

    def _is_out_of_time(self, step: int, now: float) -> bool:
        limit_s = self._session.config.stop_after_s
        if limit_s is None or not self._session.world.broadcast(
            value=now - self._origin >= limit_s
        ):
            return False
        self._report_steps(self._session.engine.collect())
        self._report(Stopped(step))
        return True

    def _is_interrupted(self, step: int) -> bool:
        if self._leave is None or not self._session.world.broadcast(value=self._leave()):
            return False
        self._report_steps(self._session.engine.collect())
        self._report(Interrupted(step))
        return True

    def _evaluate(self, step: int, *, is_due: bool, is_last: bool) -> dict[str, float]:
        if not is_due and not is_last:
            return {}
        self._report_steps(self._session.engine.collect())
        config = self._session.config
        if is_last:
            metrics, self._quality = evaluate_last(self._session, self._final)
        else:
            metrics = evaluate(self._session, config.precision)
        self._report(Evaluated(step, metrics, time.monotonic() - self._origin))
        return metrics

    def _save(self, step: int, metrics: dict[str, float], *, is_last: bool) -> None:
        self._report_steps(self._session.engine.collect())  # raises if a loss is not finite
        if self._saver:
            scores = sample_scores(self._session, self._final) if is_last else None
            scalars = self._best.scalars() if self._best else {}
            for event in self._saver.save(step, metrics, scores, self._quality, scalars):
                self._report(event)

    def _report_steps(self, results: Sequence[Stepped]) -> None:
        self._meter.results += results
        self._meter.wall_s = time.monotonic() - self._origin if results else self._meter.wall_s
        elapsed, events = time.monotonic() - self._origin, list[Stepped]()
        for result in reversed(results):  # each step ended when the next one began
            events.append(dataclasses.replace(result, elapsed_s=elapsed))
            elapsed -= result.seconds
        for event in reversed(events):
            self._report(event)


def _resume(
    session: Session, store: CheckpointStore | None, report: Report, best: BestEvaluation | None
) -> int:
    found = None
    if store and session.world.is_main:
        found = checkpoint.latest(store, lambda text: report(CheckpointSkipped(text)))
    found = session.world.gather(found)[0]
    if store is None or found is None:
        return 0
    scalars = state.restore(session, checkpoint.download(found, store))
    if best:
        best.resume(scalars)
        if best.step < found.step and (
            best.is_over or found.step == session.batch_plan.total_steps
        ):
            report(best.kept_at(found.step))
    return int(found.step)


def _started(session: Session, first: int) -> Started:
    corpus, engine = session.corpus, session.engine
    return Started(
        total_steps=session.batch_plan.total_steps,
        first_step=first,
        train_rows=len(corpus.train),
        eval_rows=len(corpus.eval),
        labels=corpus.label_names,
        mode=engine.mode,
        capture_s=engine.capture_s,
        left_out=corpus.left_out,
        cut=corpus.cut,
        remarks=session.remarks,
    )


def _finish(
    session: Session,
    saver: CheckpointSaver | None,
    store: CheckpointStore | None,
    metrics: dict[str, float],
    report: Report,
) -> CheckpointRef:
    saved: list[Saved] = saver.finish() if saver else []
    for event in saved:
        report(event)
    session.world.broadcast(value=0)  # workers wait until the last checkpoint is complete
    total = session.batch_plan.total_steps
    # reading it hashes all its files, and may download them
    last = checkpoint.latest(store) if store and session.world.is_main else None
    return last or CheckpointRef("", total, metrics)


def _ignore(_: Event) -> None:
    """Ignores the events of workers other than the main one."""
