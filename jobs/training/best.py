"""The best evaluation of a run, at which early stopping waits no longer, and its weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from jobs.spec.task import Metric
from jobs.training import checkpoint, state
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.events import BestKept, CheckpointSkipped, Event
from jobs.training.session import Session

STEP, VALUE, LATER = "best_step", "best_value", "later_evaluations"
"""Keys of a best evaluation among the scalars of a checkpoint."""


@dataclass(slots=True)
class BestEvaluation:
    """The best evaluation so far, and the number of evaluations after it."""

    metric: Metric
    patience: int
    step: int = 0
    """0 before the first evaluation."""
    value: float = math.nan
    later: int = 0
    """Evaluations in a row that were not better."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All values of the evaluation; empty after a resume, where its checkpoint has them."""

    @property
    def is_over(self) -> bool:
        """Whether training has to end."""
        return self.later >= self.patience

    def take(self, step: int, metrics: dict[str, float]) -> bool:
        """Takes the evaluation after `step` steps; returns whether it is the best so far."""
        value = metrics[self.metric.name]
        is_better = value > self.value if self.metric.goal == "max" else value < self.value
        is_better = is_better or (math.isnan(self.value) and not math.isnan(value))
        if is_better or not self.step:
            self.step, self.value, self.later, self.metrics = step, value, 0, metrics
            return True
        self.later += 1
        return False

    def scalars(self) -> dict[str, float]:
        """Returns what a checkpoint keeps of it."""
        if not self.step:
            return {}
        return {STEP: self.step, VALUE: self.value, LATER: self.later}

    def resume(self, scalars: dict[str, float]) -> None:
        """Takes over what a checkpoint kept; nothing from a run without early stopping."""
        if STEP in scalars:
            self.step, self.later = int(scalars[STEP]), int(scalars[LATER])
            self.value = float(scalars[VALUE])

    def kept_at(self, step: int) -> BestKept:
        """Returns the event that training ended after `step` steps with these weights."""
        return BestKept(step, self.step, self.metric.name, self.later, is_early=self.is_over)


def best_of(config: TrainingConfig) -> BestEvaluation | None:
    """Returns the record of a run with early stopping, before its first evaluation; else None."""
    stopping = config.early_stopping
    return (
        BestEvaluation(checkpoint.selection_metric(config), stopping.patience) if stopping else None
    )


def restore_best(
    session: Session,
    store: CheckpointStore,
    best: BestEvaluation,
    report: Callable[[Event], None],
) -> bool:
    """Restores the state of the best evaluation from its checkpoint; all workers must call this.

    Returns whether the checkpoint was there; `report` gets a message if it was not.
    """
    found = checkpoint.of_step(store, best.step) if session.world.is_main else None
    found = session.world.gather(found)[0]
    if found is None:
        report(
            CheckpointSkipped(
                f"the checkpoint of the best evaluation, of step {best.step}, is gone, so the last"
                " weights are kept; see train.checkpoint.max_size"
            )
        )
        return False
    state.restore(session, checkpoint.download(found, store))
    return True
