"""The fit: trains the winner, and records how it went."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from cluster.telemetry import GaugePublisher, Sample
from jobs.errors import InfeasibleError, PublishError
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TRAINING_CONFIG
from jobs.training.events import Event
from orchestrator.context import Context
from orchestrator.decisions import budget
from orchestrator.decisions.budget import Spent
from orchestrator.decisions.recovery import Failed, GiveUp, Retry
from orchestrator.decisions.resolve import training_config
from orchestrator.decisions.select import Winner
from orchestrator.notices import StageFinished, StageStarted
from orchestrator.records import receipt_text
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from orchestrator.stages import fit as fitting
from orchestrator.stages.secrets import secrets_of
from orchestrator.watch import FitWatch


def fit_stage(
    context: Context,
    winner: Winner,
    spent_usd: float = 0.0,
    on_event: Callable[[Event], None] = lambda _: None,
) -> FitResult:
    """Train the winner with Ray Train, from its newest checkpoint when it was interrupted.

    `spent_usd`: what of the budget's cost is gone. `on_event` gets the events of training too.
    Raises PublishError when the saved model does not score as it did in training.
    """
    fit = context.run.stage("fit", FitResult, lambda: _fit(context, winner, spent_usd, on_event))
    return replace(fit, run=context.run.id)  # older releases did not record it


def _fit(
    context: Context, winner: Winner, spent_usd: float, on_event: Callable[[Event], None]
) -> FitResult:
    config = training_config(context.spec, winner.candidate.execution, winner.params)
    config = replace(
        config,
        stop_after_s=_stop_after_s(context, winner, spent_usd),
        accepts_changes=context.accepts_changes,
    )
    folder = context.run.folder / "fit"
    folder.mkdir(parents=True, exist_ok=True)
    context.run.keep("fit/training.json", TRAINING_CONFIG.dump_json(config, indent=2))
    context.notify(StageStarted("fit", str(winner)))
    price = winner.candidate.placement.price_usd_per_hour
    tell = functools.partial(
        _tell, GaugePublisher(), {"job": context.spec.name, "run": context.run.id}
    )
    watch = FitWatch(context.notify, price, winner.prediction, context.clock, tell)
    with with_tensorboard(context):

        def take(event: Event) -> None:
            watch.show(event)
            context.tracking.take(event)
            on_event(event)

        def failed(failure: Failed, decision: Retry | GiveUp) -> None:
            done = _shown(failure, decision)
            context.run.note("failure", cause=failure.cause, message=failure.message, done=done)
            context.remark(f"{failure.message}: {done}")

        rules = fitting.Rules(
            context.spec.train.retry,
            context.spec.wait,
            context.spec.train.hang_after.total_seconds(),
            context.spec.train.min_workers,
            secrets_of(context.spec),
            context.devices,
            context.workers,
        )
        shelf = checkpoints_of(context.run)
        result = fitting.fit(
            config, winner.candidate.placement, shelf, rules, take, failed, context.remark
        )
    if result.proof and result.proof.refusal:  # not recorded: a resumed run proves it again
        raise PublishError(
            f"the model is not published, because {result.proof.refusal}; the checkpoint stays in"
            f" {result.checkpoint.path}, and --resume tries again"
        )
    context.notify(StageFinished("fit", f"{result.last_step} steps in {result.duration_s:.1f} s"))
    return replace(result, run=context.run.id, projections=tuple(watch.projections))


@contextlib.contextmanager
def with_tensorboard(context: Context) -> Iterator[None]:
    """Writes the run's TensorBoard files too while the block lasts, and stores them at its end."""
    place = context.run.folder / "fit" / "tensorboard"
    with context.tracking.with_tensorboard(place):
        yield
    if context.storage.is_bucket:
        for path in place.glob("*"):
            context.run.keep(f"fit/{place.name}/{path.name}", path.read_bytes())


def _tell(teller: GaugePublisher, labels: Mapping[str, str], values: Mapping[str, float]) -> None:
    teller.publish(Sample(f"winnow_fit_{name}", value, labels) for name, value in values.items())


def _shown(failure: Failed, decision: Retry | GiveUp) -> str:
    """What is done about a failure, in words."""
    if isinstance(decision, GiveUp):
        return f"given up, because {decision.reason or 'it would end the same way again'}"
    if decision.smaller:
        return "going on with half the micro batch"
    away = f", without {len(decision.avoid)} nodes" if decision.avoid else ""
    return f"going on from the newest checkpoint{away}"


def checkpoints_of(run: Run) -> CheckpointStore:
    """Where a run's checkpoints are: its folder, and the bucket where there is one."""
    place = "fit/checkpoints"
    return CheckpointStore(
        run.folder / place, f"{run.url}/{place}" if run.storage.is_bucket else ""
    )


def _stop_after_s(context: Context, winner: Winner, spent_usd: float) -> float | None:
    """What the budget leaves for training; told when that is less than the whole run needs."""
    spent = Spent(context.clock() - context.began, spent_usd)
    price = winner.candidate.placement.price_usd_per_hour
    kept_s = context.spec.train.eval.harness_s
    left_s = budget.seconds_left(context.spec.budget, spent, price)
    if left_s is not None and left_s <= kept_s:
        raise InfeasibleError(
            f"the budget leaves {receipt_text.show_time(left_s)}, of which"
            f" train.eval.harness.max_duration keeps {receipt_text.show_time(kept_s)}; raise the"
            " budget or keep less"
        )
    left_s = None if left_s is None else left_s - kept_s
    if left_s is not None and winner.prediction and winner.prediction.time_s.mean > left_s:
        needed = receipt_text.show_time(winner.prediction.time_s.mean)
        left = receipt_text.show_time(left_s)
        text = f"the whole run needs about {needed}, the budget leaves {left}:"
        context.remark(f"{text} training will stop early")
    return budget.stop_after_s(left_s, winner.prediction)
