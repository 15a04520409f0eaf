"""The harness: judges the trained model by tasks of lm-evaluation-harness, once in a run."""

from dataclasses import replace

from jobs.errors import ClusterError, InfeasibleError, TrainingError
from jobs.spec import JobSpec, metric_rules
from jobs.training.events import Evaluated
from jobs.training.harness import HarnessProgress, HarnessResult
from orchestrator.context import Context
from orchestrator.decisions import budget
from orchestrator.decisions.budget import Spent
from orchestrator.decisions.select import Winner
from orchestrator.fitting import checkpoints_of, with_tensorboard
from orchestrator.notices import Progress, StageFinished, StageStarted
from orchestrator.records.receipt import FitResult
from orchestrator.records.receipt_text import harness_text, show_time
from orchestrator.stages import harness as stage


def harness_stage(
    context: Context, winner: Winner, fit: FitResult, spent_usd: float = 0.0
) -> FitResult:
    """Judge the trained model by the job's harness, and add what it measured to its metrics.

    `spent_usd`: what of the budget's cost is gone. Without numbers the run goes on, unless a limit
    or the gate of a rollout needs them: then nothing is recorded, and a resumed run tries again.

    Raises:
        TrainingError: if there are no numbers, and the job needs them.
    """
    if context.spec.train.eval.harness is None:
        return fit
    found = context.run.stage(
        "harness", HarnessResult, lambda: _judged(context, winner, fit, spent_usd)
    )
    metrics = {**fit.checkpoint.metrics, **found.values}
    return replace(fit, checkpoint=replace(fit.checkpoint, metrics=metrics), harness=found)


def needed_metrics(spec: JobSpec) -> tuple[str, ...]:
    """Returns the metrics of the harness that a limit or the gate of a rollout names."""
    return tuple(dict.fromkeys(name for _, name in metric_rules.harness_metrics(spec)))


def check_measured(spec: JobSpec, fit: FitResult) -> None:
    """Refuse to serve a model without a metric of the harness that the job needs.

    Raises:
        InfeasibleError: with the metrics that there are.
    """
    found = fit.harness.values if fit.harness else {}
    missing = [name for name in needed_metrics(spec) if name not in found]
    if missing:
        raise InfeasibleError(
            f"the harness measured no {', '.join(missing)}, which a limit or the gate names, so the"
            f" model is not deployed; it measured {', '.join(found)}"
        )


def _judged(context: Context, winner: Winner, fit: FitResult, spent_usd: float) -> HarnessResult:
    spec = context.spec
    assert spec.train.eval.harness is not None
    names = ", ".join(spec.train.eval.harness.tasks)
    context.notify(StageStarted("harness", f"{names}: starting a worker and loading the model"))
    try:
        found = stage.evaluate(
            stage.Judging(
                spec,
                fit.checkpoint,
                checkpoints_of(context.run),
                winner.candidate.placement,
                context.devices,
                _limit_s(context, winner, fit, spent_usd),
            ),
            lambda progress: _show(context, progress),
            context.remark,
        )
    except (ClusterError, InfeasibleError, TrainingError) as error:
        found = HarnessResult(failure=str(error))
    if found.failure and needed_metrics(spec):  # not recorded: a resumed run tries again
        raise TrainingError(
            f"the harness measured nothing, because {found.failure}; a limit or the gate needs"
            f" {', '.join(needed_metrics(spec))}. The model stays in {fit.checkpoint.path}, and"
            " --resume tries again"
        )
    if found.failure:
        context.remark(f"the harness measured nothing, and the run goes on: {found.failure}")
    _track(context, fit, found)
    took = show_time(found.seconds)
    context.notify(StageFinished("harness", f"{harness_text(found)}, in {took}"))
    return found


def _limit_s(context: Context, winner: Winner, fit: FitResult, spent_usd: float) -> float | None:
    """Returns how long the harness may take by its own limit and by what the budget leaves.

    Raises:
        InfeasibleError: if nothing is left.
    """
    spec, price = context.spec, winner.candidate.placement.price_usd_per_hour
    proof_s = fit.proof.seconds if fit.proof else 0.0
    usd = spent_usd + (price or 0.0) * (fit.duration_s + proof_s) / 3600
    one = None if price is None else price / winner.candidate.placement.workers
    spent = Spent(context.clock() - context.began, usd)
    left_s = budget.remaining_s(spec.budget, spent, one)
    if left_s is not None and left_s <= 0:
        raise InfeasibleError(
            "training used up the budget; set train.eval.harness.max_duration, so that it leaves"
            " time for the harness"
        )
    most_s = (left_s, spec.train.eval.harness_s or None)
    return min((limit for limit in most_s if limit is not None), default=None)


def _show(context: Context, progress: HarnessProgress) -> None:
    if progress.total:
        text = f"{progress.kind} requests"
        context.notify(Progress("harness", progress.done, progress.total, text))


def _track(context: Context, fit: FitResult, found: HarnessResult) -> None:
    """Send the numbers to the trackers, as metrics of an evaluation after the last step."""
    if found.values:
        with with_tensorboard(context):
            context.tracking.take(Evaluated(fit.checkpoint.step, found.values))
