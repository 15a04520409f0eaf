"""Selects the winner from speed and quality: limits, Pareto front, objective, tie-break."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from jobs.spec.quantities import format_metric
from jobs.spec.task import Goal
from orchestrator.decisions import predict, search
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.resolve import Scalar, with_params
from orchestrator.decisions.search import TrialResult

DIVERGED = 10.0
"""A trial has diverged if its loss exceeds this multiple of max(1, the best trial's loss)."""
TIE_BREAK = "ties by the judged metric, then its loss, then cost, then time"
"""Order of the tie-break, for the winner's reason."""


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate with values of the searched fields, its predicted speed and measured quality."""

    candidate: str
    params: dict[str, Scalar]
    time_s: float | None
    cost_usd: float | None
    quality: float | None
    """The compared metric of the trial, within its shorter budget."""
    goal: Goal = "max"
    """Whether a larger or a smaller quality is better."""
    loss: float | None = None
    """Loss of the same trial on the evaluation rows."""
    breaks: tuple[str, ...] = ()
    """Limits that its mean breaks."""
    may_break: tuple[str, ...] = ()
    """Limits that a bound of its interval breaks."""
    is_pareto: bool = False
    """Whether no other option within the limits dominates it in cost, time and quality."""

    @property
    def id(self) -> str:
        """Candidate and parameters."""
        values = (f"{name.rsplit('.', 1)[-1]}={value}" for name, value in self.params.items())
        return " ".join((self.candidate, *values))


@dataclass(frozen=True, slots=True)
class Winner:
    """The chosen candidate, with the reason and the options that it was chosen from."""

    candidate: Candidate
    params: dict[str, Scalar]
    prediction: Prediction | None
    """None if the job has no sweep, so that nothing was measured."""
    reason: str
    options: tuple[Option, ...] = ()
    """All options, including those that break limits."""
    finalists: tuple[str, ...] = ()
    """Ids of the best candidates, in order, which are measured again."""
    compiling: str = ""
    """Whether `train.compile: auto` compiles its steps, and why; empty without a GPU or `auto`, and
    in a run of an older release."""

    def __str__(self) -> str:
        """Candidate and searched fields."""
        values = (f"{name.rsplit('.', 1)[-1]} {value}" for name, value in self.params.items())
        return ", ".join((self.candidate.id, *values))


def quality_candidate(plan: Plan, predictions: Sequence[Prediction]) -> Candidate:
    """Returns the candidate for quality trials: the cheapest, or without prices the fastest.

    Raises:
        InfeasibleError: if no candidate has a prediction.
    """
    _require(predictions)
    return plan.candidate(min(predictions, key=predict.cost_rank).candidate)


def _require(predictions: Sequence[Prediction]) -> None:
    """Raise InfeasibleError if there is no prediction: every probe ran out of memory."""
    if not predictions:
        raise InfeasibleError("every candidate ran out of memory; lower train.micro_batch_size")


def select_unmeasured(plan: Plan) -> Winner:
    """Select without a sweep: the cheapest placement per hour, then fewest accumulation steps."""

    def rank(candidate: Candidate) -> tuple[float, int]:
        price = candidate.placement.price_usd_per_hour
        return (float("inf") if price is None else price, candidate.accumulation)

    chosen = min(plan.candidates, key=rank)
    reason = "no sweep: the cheapest placement per hour with the fewest forward passes per step"
    return Winner(chosen, {}, None, reason)


def select(
    spec: JobSpec,
    plan: Plan,
    predictions: Sequence[Prediction],
    trials: Sequence[TrialResult],
    eval_rows: int = 0,
) -> Winner:
    """Select by the job's objective among the options that keep its limits on time and cost.

    Options whose whole interval keeps every limit are preferred; the interval of time and cost is
    the prediction's, that of a metric follows from sampling `eval_rows` rows. If no trial reaches a
    metric's limit, the best trial wins nevertheless: trials are shorter than the run, and the limit
    is checked again on the trained model.

    Raises:
        InfeasibleError: if no candidate has a prediction, or no option keeps the limits on time and
            cost.
    """
    _require(predictions)
    options = _mark_pareto(_options(spec, plan, predictions, trials, eval_rows))
    affordable = [option for option in options if not _on_spending(option.breaks)]
    if not affordable:
        broken = "; ".join(sorted({limit for option in options for limit in option.breaks}))
        raise InfeasibleError(f"no option keeps the limits of the sweep: {broken}")
    safe = [option for option in affordable if not _on_spending(option.may_break)]
    note = "" if safe else "; limits on time and cost are kept on average alone"
    affordable = safe or affordable
    allowed = [option for option in affordable if not option.breaks]
    note += "" if allowed else "; no trial reached the metric's limit within its shorter budget"
    sure = [option for option in allowed if not option.may_break]
    if allowed and not sure and safe:
        note += f"; {eval_rows} rows of evaluation cannot tell whether the metric's limit is kept"
    allowed = sure or allowed
    ranking = sorted(
        allowed or affordable, key=lambda option: _rank(spec, option, by_quality=not allowed)
    )
    number = f"{len(ranking)} option{'s' if len(ranking) > 1 else ''}"
    chosen, names = ranking[0], tuple(dict.fromkeys(option.candidate for option in ranking))
    return Winner(
        candidate=plan.candidate(chosen.candidate),
        params=chosen.params,
        prediction=next(p for p in predictions if p.candidate == chosen.candidate),
        reason=f"{_objective(spec)} of {number}{note}; {TIE_BREAK}",
        options=tuple(options),
        finalists=names[: spec.sweep.probe.confirm if spec.sweep else 0],
    )


def relocate(winner: Winner, plan: Plan) -> Winner:
    """Returns the winner on the nodes of a newer plan, because nodes change between attempts."""
    return replace(winner, candidate=plan.candidate(winner.candidate.id))


def winning_job(spec: JobSpec, winner: Winner) -> JobSpec:
    """Returns the job with the winner's values and without a sweep."""
    candidate = winner.candidate
    params: dict[str, Scalar] = {
        **winner.params,
        "train.micro_batch_size": candidate.micro_batch_size,
        "train.precision": candidate.precision,
    }
    if spec.train.compile == "auto":
        params["train.compile"] = candidate.compiled
    values = with_params(spec, params).model_dump(mode="json", exclude_unset=True)
    values.pop("sweep", None)
    placement = candidate.placement
    request = {"accelerators": f"{placement.sku}:{placement.workers}", "spot": placement.spot}
    values["resources"] = {"any_of": [{k: v for k, v in request.items() if v is not None}]}
    return JobSpec.model_validate(values)


def broken_limits(spec: JobSpec, values: Mapping[str, float | None]) -> tuple[str, ...]:
    """Returns a sentence for each limit of the sweep that known values break."""
    limits = spec.sweep.objective.subject_to if spec.sweep else {}
    broken = []
    for name, bound in limits.items():
        value = values.get(name)
        if value is not None and not bound.holds(value):
            shown = f"{value:.4g}" if name in ("time", "cost") else format_metric(value)
            broken.append(f"{name} {shown} is not {bound}")
    return tuple(broken)


def _on_spending(broken: Sequence[str]) -> bool:
    """Returns whether a limit on time or cost is among the broken limits."""
    return bool({"time", "cost"} & {text.split(" ")[0] for text in broken})


def _options(
    spec: JobSpec,
    plan: Plan,
    predictions: Sequence[Prediction],
    trials: Sequence[TrialResult],
    eval_rows: int,
) -> list[Option]:
    """Returns each predicted candidate with each trial of the same precision."""
    done = _converged([trial for trial in trials if not trial.failure and trial.metrics])
    if not done:
        return [_option(spec, prediction, {}, {}, eval_rows) for prediction in predictions]
    return [
        _option(spec, prediction, trial.params, trial.metrics, eval_rows)
        for prediction in predictions
        for trial in done
        if plan.candidate(prediction.candidate).precision
        == plan.candidate(trial.candidate).precision
    ]


def _converged(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Returns the trials that have not diverged, or all trials if every one has."""
    losses = [trial.metrics.get("loss", 0.0) for trial in trials]
    best = min(filter(math.isfinite, losses), default=math.inf)
    kept = [
        trial
        for trial, loss in zip(trials, losses, strict=True)
        if loss <= DIVERGED * max(1.0, best)
    ]
    return kept or list(trials)


def _option(
    spec: JobSpec,
    prediction: Prediction,
    params: dict[str, Scalar],
    metrics: dict[str, float],
    eval_rows: int,
) -> Option:
    cost = prediction.cost_usd.mean if prediction.cost_usd else None
    known = {**metrics, "time": prediction.time_s.mean, "cost": cost}
    dearest = prediction.cost_usd.high if prediction.cost_usd else None
    judged = search.judged_metric(spec)
    noises = {name: noise(spec, name, value, eval_rows) for name, value in metrics.items()}
    low = {name: value - noises[name] for name, value in metrics.items()}
    high = {name: value + noises[name] for name, value in metrics.items()}
    high["time"] = prediction.time_s.high
    if dearest is not None:
        high["cost"] = dearest
    return Option(
        candidate=prediction.candidate,
        params=dict(params),
        time_s=prediction.time_s.mean,
        cost_usd=cost,
        quality=metrics.get(judged.name),
        goal=judged.goal,
        loss=metrics.get("loss"),
        breaks=broken_limits(spec, known),
        may_break=(*broken_limits(spec, low), *broken_limits(spec, high)),
    )


def noise(spec: JobSpec, name: str, value: float, rows: int) -> float:
    """Returns the half-width of a metric's 95 % interval from `rows` sampled rows; 0 for none."""
    metric = spec.task.metric(name)
    return metric.noise(value, rows) if metric and rows else 0.0


def _mark_pareto(options: list[Option]) -> list[Option]:
    def dominates(a: Option, b: Option) -> bool:
        mine, other = _point(a), _point(b)
        return all(x <= y for x, y in zip(mine, other, strict=True)) and mine != other

    allowed = [option for option in options if not option.breaks]
    front = {option.id for option in allowed if not any(dominates(o, option) for o in allowed)}
    return [replace(option, is_pareto=option.id in front) for option in options]


def _point(option: Option) -> tuple[float, float, float]:
    """Returns cost, time and quality as numbers of which smaller is better."""
    infinite = float("inf")
    return (
        infinite if option.cost_usd is None else option.cost_usd,
        infinite if option.time_s is None else option.time_s,
        infinite
        if option.quality is None
        else option.quality * (1 if option.goal == "min" else -1),
    )


def _rank(spec: JobSpec, option: Option, *, by_quality: bool) -> tuple[float, ...]:
    cost, time, quality = _point(option)
    loss = math.inf if option.loss is None else option.loss
    best = spec.sweep.objective.best if spec.sweep else "cost"
    if by_quality or best not in ("cost", "time"):
        return quality, loss, cost, time
    first = time if best == "time" else cost
    return first, quality, loss, cost, time


def _objective(spec: JobSpec) -> str:
    objective = spec.sweep.objective if spec.sweep else None
    if objective and objective.maximize:
        return f"highest {objective.maximize}"
    return f"lowest {objective.best if objective else 'cost'}"
