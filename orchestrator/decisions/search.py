"""The quality search: its space, its trials' budget, and the metric that compares trials."""

import itertools
import math
from dataclasses import dataclass, field

from jobs.loader.overrides import SPEED_FIELDS
from jobs.spec import JobSpec
from jobs.spec.quantities import Cadence
from jobs.spec.sweep import LogUniform, Uniform
from jobs.spec.task import Metric
from jobs.training.data import batches
from orchestrator.decisions.resolve import Scalar
from orchestrator.decisions.trial_times import TrialTiming

EVALUATIONS, FEW_EVALUATIONS = 4, 2
"""Evaluations of a trial: a bad one is stopped after half of its steps, and the others show how it
learns. Without them a trial has FEW_EVALUATIONS."""
EVALUATION_SHARE = 0.1
"""Largest share of a trial's steps that the evaluations between may take."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of values to sample from."""

    low: float
    high: float
    is_log: bool


Space = dict[str, tuple[Scalar, ...] | Range]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of one quality trial."""

    id: str
    candidate: str
    """Id of the candidate on which it ran, whose precision affects the metrics."""
    params: dict[str, Scalar]
    metrics: dict[str, float]
    """Metrics of the last evaluation."""
    history: tuple[tuple[int, float], ...] = ()
    """Pairs of optimizer step and compared metric, one for each evaluation."""
    stopped_early: bool = False
    duration_s: float = 0.0
    """Wall time, including the start of its worker group."""
    failure: str = ""
    """Reason why it has no result; empty if it has one."""
    timing: TrialTiming | None = None
    """Its steps as a timing of the candidate; None if they are too few, or not to be compared."""


@dataclass(frozen=True, slots=True)
class TrialBudget:
    """The length of a quality trial and the cadence of its evaluations."""

    epochs: float
    steps: int
    eval_every: Cadence = field(default=Cadence(1, "step"))
    width: float = 0.0
    """Mean width of the full run's steps, for which a trial's steps are timed; 0 to time none."""

    @property
    def grace_steps(self) -> int:
        """Steps before a trial may be stopped: the first evaluation at or after half of them.

        During the warm-up of the learning rate, trials do not differ.
        """
        every = int(self.eval_every.value)
        return every * math.ceil(self.steps / 2 / every)


def quality_space(spec: JobSpec) -> Space:
    """Returns the searched fields that affect learning; probes decide precision and micro batch."""
    space: Space = {}
    for name, values in (spec.sweep.search_space if spec.sweep else {}).items():
        if name in SPEED_FIELDS:
            continue
        if isinstance(values, LogUniform):
            space[name] = Range(values.loguniform[0], values.loguniform[1], is_log=True)
        elif isinstance(values, Uniform):
            space[name] = Range(values.uniform[0], values.uniform[1], is_log=False)
        else:
            space[name] = values
    return space


def full_grid(space: Space, trials: int) -> tuple[dict[str, Scalar], ...] | None:
    """Returns every combination if all fields are lists and the trials suffice, else None."""
    if any(isinstance(values, Range) for values in space.values()):
        return None
    lists = [values for values in space.values() if isinstance(values, tuple)]
    grid = [dict(zip(space, combination, strict=True)) for combination in itertools.product(*lists)]
    return tuple(grid) if len(grid) <= trials else None


def trial_count(spec: JobSpec) -> int:
    """Returns the number of quality trials: the job's `trials`, or fewer for a smaller grid."""
    trials = spec.sweep.trials if spec.sweep else 0
    grid = full_grid(quality_space(spec), trials)
    return trials if grid is None else len(grid)


def trial_budget(spec: JobSpec, train_rows: int, evaluation_steps: float = 0.0) -> TrialBudget:
    """Returns the budget of a trial, a share of the full run.

    `evaluation_steps` is how many steps an evaluation takes as long as.
    """
    share = spec.sweep.trial_share if spec.sweep else 1.0
    epochs = spec.train.epochs * share
    steps = batches.total_steps(train_rows, spec.train.global_batch_size, epochs)
    between = (EVALUATIONS - FEW_EVALUATIONS) * evaluation_steps
    # early stopping counts evaluations
    is_dear = between > EVALUATION_SHARE * steps and spec.train.early_stopping is None
    count = FEW_EVALUATIONS if is_dear else EVALUATIONS
    return TrialBudget(epochs, steps, Cadence(max(1, math.ceil(steps / count)), "step"))


def judged_metric(spec: JobSpec) -> Metric:
    """Returns the metric that compares trials: the objective's, else a limit's, else the first."""
    objective = spec.sweep.objective if spec.sweep else None
    limits = objective.subject_to if objective else {}
    named = [objective.best] if objective else []
    chosen = next((name for name in (*named, *limits) if name in spec.metrics), spec.metrics[0])
    found = spec.task.metric(chosen)
    assert found  # a rule of job files checks that metrics belong to the task
    return found
