"""A job from its plan to its receipt: each stage once, each result recorded."""

import functools
from collections.abc import Mapping
from dataclasses import replace

from cluster import discovery
from cluster.inventory import Inventory
from cluster.telemetry import GaugePublisher, Sample
from jobs.errors import InfeasibleError, PublishError
from jobs.spec import JobSpec
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TRAINING_CONFIG
from jobs.training.events import Event
from orchestrator import availability, preflight, sweeping
from orchestrator.context import Context
from orchestrator.decisions import budget, search, select
from orchestrator.decisions.budget import Spent
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.recovery import Failed, GiveUp, Retry
from orchestrator.decisions.resolve import training_config
from orchestrator.decisions.select import Winner
from orchestrator.decisions.sweep import Sweep
from orchestrator.notices import Notice, Pace, Progress, StageFinished, StageStarted
from orchestrator.planning import plan_on
from orchestrator.publishing import deploy_stage, publish_stage
from orchestrator.records import receipt as receipts
from orchestrator.records import receipt_text, report, tracking
from orchestrator.records.outcome import Outcome
from orchestrator.records.receipt import FitResult, Receipt
from orchestrator.records.runs import Run
from orchestrator.stages import fit as fitting
from orchestrator.stages.secrets import secrets_of
from orchestrator.watch import PUBLISH_EVERY_S, FitWatch
from serve.deploy import deployment, endpoints


def run(context: Context) -> Outcome:
    """All stages of a job, those that a resumed run has finished read back."""
    context = _measured(context)
    with availability.requested_nodes(context) as keep:
        plan = plan_stage(context)
        found = sweeping.run_sweep(context, plan)
        keep(found.winner.candidate.placement)
        fit, receipt = train_stage(context, found)
        model = publish_stage(context.run, context.spec, fit, context.notify)
        check_limits(context.spec, found.winner, receipt)
        endpoint = deploy_stage(context, model) if context.spec.serve else None
        context.run.note("completed")
        return Outcome(
            run=context.run.id,
            folder=context.run.url,
            winner=found.winner,
            model=model,
            receipt=receipt,
            endpoint=endpoint,
            report=f"{context.run.url}/{report.PAGE}",
        )


def sweep_only(context: Context, wanted: Plan | None = None) -> Sweep:
    """What a sweep finds, written into the report too, without training the winner.

    With `wanted` only the candidates of that plan are tried.
    """
    context = _measured(context)
    with availability.requested_nodes(context):
        plan = plan_stage(context, wanted)
        found = sweeping.run_sweep(context, plan)
        write_report(context, found, None, None)
        context.run.note("completed")
        return found


def train_only(context: Context, swept: Sweep | None = None) -> FitResult:
    """Train a run's winner, with the receipt and the report, and neither publish nor deploy it.

    The run's sweep is read back; without one the winner is chosen by price. The winner of `swept`
    takes the place of the recorded one.
    """
    context = _measured(context)
    if swept:
        sweeping.adopt(context, swept.winner)
        context = replace(context, began=context.began - swept.duration_s)  # of the budget
    with availability.requested_nodes(context) as keep:
        plan = plan_stage(context, swept.plan if swept else None)
        found = sweeping.run_sweep(context, plan)
        keep(found.winner.candidate.placement)
        fit, _ = train_stage(context, found)
        context.run.note("completed")
        return fit


def plan_stage(context: Context, wanted: Plan | None = None) -> Plan:
    """Decide what to try on the cluster as it is now, because nodes come and go.

    A run that is trained keeps its plan: the base model and the nodes that it was trained on may be
    gone. With `wanted` the plan has no more than the candidates of that one.
    """
    context.notify(StageStarted("plan"))
    secrets_of(context.spec)  # what is missing is told before anything is done
    inventory, spec, is_trained = discovery.discover(), context.spec, context.is_trained
    preflight.check(spec, is_trained=is_trained)
    if spec.serve:
        deployment.serving_nodes(spec.serve, inventory)
        endpoints.log_moved_routes(spec.name, spec.serve, context.serve_port, context.remark)
    recorded = context.run.value("plan", Plan) if is_trained else None
    plan = recorded or _plan_anew(context, inventory, wanted)
    text = (
        f"{len(plan.candidates)} candidates, {len(plan.skipped)} skipped; cluster has {inventory}"
    )
    context.notify(StageFinished("plan", text))
    for each in preflight.remarks(spec):
        context.remark(each)
    if any(node.simulated for node in inventory.nodes):
        context.remark("simulated accelerators: all times and prices below are simulated")
    return plan


def _plan_anew(context: Context, inventory: Inventory, wanted: Plan | None) -> Plan:
    """Decide and record what to try on these nodes."""
    preflight.check_ability(context.spec)
    preflight.check_base(context.spec)
    plan = plan_on(context.spec, inventory)
    plan = plan.among(wanted) if wanted else plan
    context.run.write("inventory", inventory)
    context.run.write("plan", plan)
    for each in plan.remarks:
        context.remark(each)
    return plan


def train_stage(context: Context, found: Sweep) -> tuple[FitResult, Receipt]:
    """Train the winner, compare it with what was predicted, and write the report."""
    fit = fit_stage(context, found.winner, found.cost_usd)
    is_priced = found.winner.candidate.placement.price_usd_per_hour
    receipt = context.run.stage(
        "receipt",
        Receipt,
        lambda: receipts.write_receipt(
            context.run.id,
            found.winner,
            fit,
            found.duration_s,
            found.cost_usd if is_priced else None,
        ),
    )
    write_report(context, found, fit, receipt)
    return fit, receipt


def fit_stage(context: Context, winner: Winner, spent_usd: float = 0.0) -> FitResult:
    """Train the winner with Ray Train, from its newest checkpoint when it was interrupted.

    `spent_usd`: what of the budget's cost is gone. Raises PublishError when the saved model does
    not score as it did in training.
    """
    fit = context.run.stage("fit", FitResult, lambda: _fit(context, winner, spent_usd))
    return replace(fit, run=context.run.id)  # older releases did not record it


def _measured(context: Context) -> Context:
    """The same, with its progress told to Prometheus too."""
    teller, notify = GaugePublisher(), context.notify
    pace = Pace(PUBLISH_EVERY_S, context.clock)

    def tell(notice: Notice) -> None:
        notify(notice)
        if not isinstance(notice, Progress):
            return
        if pace.is_due(notice.stage, is_last=notice.done >= notice.total):
            labels = {"job": context.spec.name, "run": context.run.id, "stage": notice.stage}
            counts = {"winnow_stage_done": notice.done, "winnow_stage_total": notice.total}
            teller.publish(Sample(name, value, labels) for name, value in counts.items())

    return replace(context, notify=tell)


def _tell(teller: GaugePublisher, labels: Mapping[str, str], values: Mapping[str, float]) -> None:
    teller.publish(Sample(f"winnow_fit_{name}", value, labels) for name, value in values.items())


def check_limits(spec: JobSpec, winner: Winner, receipt: Receipt) -> None:
    """Refuse to serve a model that breaks a limit on its metrics."""
    broken = select.broken_limits(spec, {**receipt.metrics, "time": None, "cost": None})
    if broken:
        raise InfeasibleError(
            f"the trained model breaks the sweep's limits ({'; '.join(broken)}), so it is not"
            f" deployed; train longer than {spec.train.epochs:g} epochs or search other values than"
            f" {winner.params or 'these'}"
        )


def write_report(
    context: Context, found: Sweep, fit: FitResult | None, receipt: Receipt | None
) -> str:
    """Write the run's report.html and report.json and return where the page is."""
    data = report.ReportData(
        run=context.run.id,
        metric=search.judged_metric(context.spec).name,
        plan=found.plan,
        winner=found.winner,
        measurements=found.measurements,
        predictions=found.predictions,
        trials=found.trials,
        fit=fit,
        receipt=receipt,
        limits=_metric_limits(context.spec),
    )
    context.run.keep(report.DATA, report.to_json(data))
    return context.run.keep(report.PAGE, report.render(data).encode())


def _fit(context: Context, winner: Winner, spent_usd: float) -> FitResult:
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
    place = folder / "tensorboard"
    trained = select.winning_job(context.spec, winner)
    with tracking.track(trained, context.run.id, place, context.remark) as tracks:

        def take(event: Event) -> None:
            watch.show(event)
            tracks.take(event)

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
        )
        shelf = _shelf(context.run)
        result = fitting.fit(
            config, winner.candidate.placement, shelf, rules, take, failed, context.remark
        )
    if result.proof and result.proof.refusal:  # not recorded: a resumed run proves it again
        raise PublishError(
            f"the model is not published, because {result.proof.refusal}; the checkpoint stays in"
            f" {result.checkpoint.path}, and --resume tries again"
        )
    if context.storage.is_bucket:
        for path in place.glob("*"):
            context.run.keep(f"fit/{place.name}/{path.name}", path.read_bytes())
    context.notify(StageFinished("fit", f"{result.last_step} steps in {result.duration_s:.1f} s"))
    return replace(result, run=context.run.id, projections=tuple(watch.projections))


def _shown(failure: Failed, decision: Retry | GiveUp) -> str:
    """What is done about a failure, in words."""
    if isinstance(decision, GiveUp):
        return f"given up, because {decision.reason or 'it would end the same way again'}"
    if decision.smaller:
        return "going on with half the micro batch"
    away = f", without {len(decision.avoid)} nodes" if decision.avoid else ""
    return f"going on from the newest checkpoint{away}"


def _shelf(run: Run) -> CheckpointStore:
    """Where a run's checkpoints are: its folder, and the bucket where there is one."""
    place = "fit/checkpoints"
    return CheckpointStore(
        run.folder / place, f"{run.url}/{place}" if run.storage.is_bucket else ""
    )


def _metric_limits(spec: JobSpec) -> dict[str, float]:
    limits = spec.sweep.objective.subject_to if spec.sweep else {}
    return {name: bound.value for name, bound in limits.items()}


def _stop_after_s(context: Context, winner: Winner, spent_usd: float) -> float | None:
    """What the budget leaves for training; told when that is less than the whole run needs."""
    spent = Spent(context.clock() - context.began, spent_usd)
    price = winner.candidate.placement.price_usd_per_hour
    left_s = budget.seconds_left(context.spec.budget, spent, price)
    if left_s is not None and winner.prediction and winner.prediction.time_s.mean > left_s:
        needed = receipt_text.show_time(winner.prediction.time_s.mean)
        left = receipt_text.show_time(left_s)
        text = f"the whole run needs about {needed}, the budget leaves {left}:"
        context.remark(f"{text} training will stop early")
    return budget.stop_after_s(left_s, winner.prediction)
