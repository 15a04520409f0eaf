"""Passes what happens in a run to the trackers of its job, none of which can end the run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.errors import RunError, first_line
from jobs.spec import JobSpec
from jobs.training.events import Event
from orchestrator import interruption
from orchestrator.decisions import search
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner
from orchestrator.records.runs import Run
from orchestrator.tracking.mlflow_runs import MlflowRun
from orchestrator.tracking.tensorboard import TensorBoard
from orchestrator.tracking.tracker import Outcome, Tracker, params_of, step_of, values_of
from orchestrator.tracking.wandb_runs import WandbRun

Log = Callable[[str], None]


@dataclass(slots=True)
class Tracking:
    """The trackers of a run; one that fails is left out from then on, and `log` says so."""

    trackers: list[Tracker] = field(default_factory=list)
    log: Log = print
    _step: int = 0

    def take(self, event: Event) -> None:
        """Record the losses, rates, metrics or final speed of an event."""
        step = step_of(event)
        self._step = self._step if step is None else step
        self.log_values(values_of(event))

    def log_values(self, values: Mapping[str, float]) -> None:
        """Record named values of the newest step."""
        if values:
            self._each(lambda tracker: tracker.log(self._step, values))

    def log_winner(self, spec: JobSpec, winner: Winner) -> None:
        """Record the parameters of the job that trains the winner."""
        params = params_of(spec, winner)
        self._each(lambda tracker: tracker.log_params(params))

    def log_trial(self, spec: JobSpec, trial: TrialResult) -> None:
        """Record a finished trial."""
        metric = search.judged_metric(spec).name
        self._each(lambda tracker: tracker.log_trial(trial, metric))

    def log_files(self, spec: JobSpec, folder: str, paths: Sequence[Path]) -> None:
        """Upload files, or the content of folders, unless the job keeps them to itself."""
        if spec.tracking and spec.tracking.artifacts:
            self._each(lambda tracker: tracker.log_files(folder, paths))

    @contextlib.contextmanager
    def with_tensorboard(self, folder: Path) -> Iterator[None]:
        """Writes TensorBoard files too while the block lasts."""
        board = TensorBoard(folder)
        self.trackers.append(board)
        try:
            yield
        finally:
            if board in self.trackers:
                self.trackers.remove(board)
            board.close("FINISHED")

    def close(self, outcome: Outcome) -> None:
        """End the run in every tracker."""
        self._each(lambda tracker: tracker.close(outcome))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in tuple(self.trackers):
            try:
                call(tracker)
            except Exception as error:
                if interruption.kind_of(error):
                    raise
                self.trackers.remove(tracker)
                why = first_line(error)
                self.log(f"{tracker.name} accepts no more of this run, which continues: {why}")


@contextlib.contextmanager
def tracked(run: Run, spec: JobSpec, log: Log, *, is_trained: bool) -> Iterator[Tracking]:
    """Begin or continue a run in the trackers that the job names; it ends as the block does.

    Raises:
        RunError: if a tracker cannot be used, unless the run `is_trained`, so that only its end
            would be missing.
    """
    tracking = Tracking(log=log)
    outcome: Outcome = "KILLED"
    try:
        try:
            for tracker in _opened(run, spec):
                tracking.trackers.append(tracker)
        except RunError as error:
            if not is_trained:
                raise
            log(f"the run continues without it: {error}")
        yield tracking
        outcome = "FINISHED"
    except Exception as error:
        outcome = "KILLED" if interruption.kind_of(error) else "FAILED"
        raise
    finally:
        tracking.close(outcome)


def _opened(run: Run, spec: JobSpec) -> Iterator[Tracker]:
    wanted = spec.tracking
    if wanted is None:
        return
    tags = {"winnow.job": spec.name, "winnow.run": run.id, "winnow.task": spec.task.name}
    tags |= wanted.tags
    if wanted.mlflow:
        yield MlflowRun(wanted.mlflow, run, spec.name, tags)
    if wanted.wandb:
        yield WandbRun(wanted.wandb, run, spec.name, tags)
