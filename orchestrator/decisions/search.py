"""The quality search: which fields change learning, which values are tried, and what was found."""

import itertools
from dataclasses import dataclass, field

from jobs.loader.overrides import SPEED_FIELDS
from jobs.spec import JobSpec
from jobs.spec.quantities import Cadence
from jobs.spec.sweep import LogUniform, Uniform
from jobs.spec.task import Metric
from jobs.training.data import batches
from orchestrator.decisions.resolve import Scalar

EVALUATIONS_PER_TRIAL = 4
"""How often a quality trial is judged, so that a bad one can be stopped early."""


@dataclass(frozen=True, slots=True)
class Range:
    """Values drawn between two ends."""

    low: float
    high: float
    is_log: bool


Space = dict[str, tuple[Scalar, ...] | Range]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One quality trial: what was tried and how well it learnt."""

    id: str
    candidate: str
    """Where it ran; its precision is part of what was judged."""
    params: dict[str, Scalar]
    metrics: dict[str, float]
    """The last evaluation."""
    history: tuple[tuple[int, float], ...] = ()
    """Optimizer step and the judged metric at each evaluation."""
    stopped_early: bool = False
    duration_s: float = 0.0
    start_s: float | None = None
    """Starting its worker group; None where one worker trained without a group."""
    failure: str = ""
    """Why it ended without a result."""


@dataclass(frozen=True, slots=True)
class TrialBudget:
    """How long a quality trial is and when it is judged."""

    epochs: float
    steps: int
    eval_every: Cadence = field(default=Cadence(1, "step"))


def quality_space(spec: JobSpec) -> Space:
    """The searched fields that change learning; precision and micro batch are settled by probes."""
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
    """Every combination, if all fields are lists and the trials suffice; else None."""
    if any(isinstance(values, Range) for values in space.values()):
        return None
    lists = [values for values in space.values() if isinstance(values, tuple)]
    grid = [dict(zip(space, combination, strict=True)) for combination in itertools.product(*lists)]
    return tuple(grid) if len(grid) <= trials else None


def trial_count(spec: JobSpec) -> int:
    """How many quality trials a job asks for; fewer than its `trials` when a grid is smaller."""
    trials = spec.sweep.trials if spec.sweep else 0
    grid = full_grid(quality_space(spec), trials)
    return trials if grid is None else len(grid)


def trial_budget(spec: JobSpec, train_rows: int) -> TrialBudget:
    """The share of the full run that the job grants a trial."""
    share = spec.sweep.trial_share if spec.sweep else 1.0
    epochs = spec.train.epochs * share
    steps = batches.total_steps(train_rows, spec.train.global_batch_size, epochs)
    every = Cadence(max(1, steps // EVALUATIONS_PER_TRIAL), "step")
    return TrialBudget(epochs, steps, every)


def judged_metric(spec: JobSpec) -> Metric:
    """The metric that trials are compared by: the objective's, else a limit's, else the first."""
    objective = spec.sweep.objective if spec.sweep else None
    limits = objective.subject_to if objective else {}
    named = [objective.best] if objective else []
    chosen = next((name for name in (*named, *limits) if name in spec.metrics), spec.metrics[0])
    found = spec.task.metric(chosen)
    assert found  # a rule sees to it that jobs name metrics of their task
    return found
