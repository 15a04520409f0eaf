"""A job from its plan to its receipt: each stage once, each result recorded."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster import discovery
from cluster.inventory import Inventory
from cluster.prices import read_book
from cluster.telemetry import GaugePublisher, Sample
from jobs.errors import InfeasibleError, PublishError
from jobs.spec import JobSpec
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TRAINING_CONFIG
from jobs.training.data.longest import longest_row
from jobs.training.events import Event
from jobs.training.model.counting import shape_of
from orchestrator import availability, preflight, sweep
from orchestrator.context import Context
from orchestrator.decisions import budget, search, select
from orchestrator.decisions.budget import Spent
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.decisions.recovery import Failed, GiveUp, Retry
from orchestrator.decisions.resolve import training_config
from orchestrator.decisions.select import Winner
from orchestrator.notices import Notice, Progress, Remark, StageFinished, StageStarted
from orchestrator.records import receipt as receipts
from orchestrator.records import receipt_text, registry, report, tracking
from orchestrator.records.receipt import FitResult, Receipt
from orchestrator.records.runs import Run
from orchestrator.stages import fit as fitting
from orchestrator.stages.secrets import secrets_of
from orchestrator.watch import PUBLISH_EVERY_S, FitWatch
from serve.deploy import deployment
from serve.deploy.deployment import Endpoint
from serve.version import ModelVersion


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run came to; None for stages the job leaves out."""

    run: str
    folder: str
    winner: Winner
    model: ModelVersion
    receipt: Receipt
    endpoint: Endpoint | None
    report: str


def run(context: Context) -> Outcome:
    """All stages of a job, those that a resumed run has finished read back."""
    context = _measured(context)
    with availability.requested_nodes(context) as keep:
        inventory, plan = plan_stage(context)
        found = sweep.run_sweep(context, plan)
        keep(found.winner.candidate.placement)
        fit = fit_stage(context, found.winner, found.cost_usd)
        model = publish_stage(context, fit)
        receipt = context.run.stage(
            "receipt",
            Receipt,
            lambda: receipts.write_receipt(
                context.run.id,
                found.winner,
                fit,
                found.duration_s,
                found.cost_usd if found.winner.candidate.placement.price_usd_per_hour else None,
            ),
        )
        page = write_report(context, plan, found, fit, receipt)
        check_limits(context.spec, found.winner, receipt)
        endpoint = deploy_stage(context, model, inventory) if context.spec.serve else None
        context.run.note("completed")
        return Outcome(
            context.run.id, context.run.url, found.winner, model, receipt, endpoint, page
        )


def sweep_only(context: Context) -> tuple[Plan, sweep.Sweep, str]:
    """The plan, what its sweep found, and the page of the report, without training the winner."""
    with availability.requested_nodes(context):
        _, plan = plan_stage(context)
        found = sweep.run_sweep(context, plan)
        return plan, found, write_report(context, plan, found, None, None)


def plan_stage(context: Context) -> tuple[Inventory, Plan]:
    """Look at the cluster and decide what to try; always anew, because nodes come and go."""
    context.notify(StageStarted("plan"))
    secrets_of(context.spec)  # what is missing is told before anything is done
    inventory, spec = discovery.discover(), context.spec
    is_trained = context.run.read("fit", FitResult) is not None
    preflight.check(spec, is_trained=is_trained)
    if not is_trained:
        preflight.check_base(spec)
    shape = shape_of(spec.model.base, spec.task)
    plan = make_plan(spec, inventory, shape, longest_row(spec), read_book())

    def remark(text: str) -> None:
        context.notify(Remark(text))

    if spec.serve:
        deployment.serving_nodes(spec.serve, inventory)
        deployment.log_moved_routes(spec.name, spec.serve, context.serve_port, remark)
    context.run.write("inventory", inventory)
    context.run.write("plan", plan)
    text = (
        f"{len(plan.candidates)} candidates, {len(plan.skipped)} skipped; cluster has {inventory}"
    )
    context.notify(StageFinished("plan", text))
    for each in (*plan.remarks, *preflight.remarks(spec)):
        remark(each)
    if any(node.simulated for node in inventory.nodes):
        context.notify(Remark("simulated accelerators: all times and prices below are simulated"))
    return inventory, plan


def fit_stage(context: Context, winner: Winner, spent_usd: float = 0.0) -> FitResult:
    """Train the winner with Ray Train, from its newest checkpoint when it was interrupted.

    `spent_usd`: what of the budget's cost is gone. Raises PublishError when the saved model does
    not score as it did in training.
    """
    return context.run.stage("fit", FitResult, lambda: _fit(context, winner, spent_usd))


def _measured(context: Context) -> Context:
    """The same, with its progress told to Prometheus too."""
    teller, notify = GaugePublisher(), context.notify
    told_s: dict[str, float] = {}

    def tell(notice: Notice) -> None:
        notify(notice)
        if isinstance(notice, Progress):
            now = context.clock()
            is_early = now - told_s.get(notice.stage, float("-inf")) < PUBLISH_EVERY_S
            if is_early and notice.done < notice.total:
                return
            told_s[notice.stage] = now
            labels = {"job": context.spec.name, "run": context.run.id, "stage": notice.stage}
            counts = {"winnow_stage_done": notice.done, "winnow_stage_total": notice.total}
            teller.publish(Sample(name, value, labels) for name, value in counts.items())

    return replace(context, notify=tell)


def _tell(teller: GaugePublisher, labels: Mapping[str, str], values: Mapping[str, float]) -> None:
    teller.publish(Sample(f"winnow_fit_{name}", value, labels) for name, value in values.items())


def publish_stage(context: Context, fit: FitResult) -> ModelVersion:
    """Put the trained model into the registry."""
    model = context.run.stage(
        "model",
        ModelVersion,
        lambda: registry.publish(
            context.spec, fit.checkpoint, fit.labels, run_id=context.run.id, storage=context.storage
        ),
    )
    context.notify(StageFinished("publish", f"version {model.id} of {model.name}"))
    return model


def deploy_stage(context: Context, model: ModelVersion, inventory: Inventory) -> Endpoint:
    """Bring up the endpoint; always done, because an endpoint may have gone since."""
    assert context.spec.serve is not None
    context.notify(StageStarted("deploy"))
    endpoint = deployment.deploy(
        model,
        context.spec.serve,
        inventory,
        port=context.serve_port,
        find_version=functools.partial(registry.read, context.storage),
        log=lambda text: context.notify(Remark(text)),
    )
    context.run.write("endpoint", endpoint)
    registry.note_deployed(context.storage, model)
    context.notify(StageFinished("deploy", f"{endpoint.url}/predict answers with {model.id}"))
    return endpoint


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
    context: Context, plan: Plan, found: sweep.Sweep, fit: FitResult | None, receipt: Receipt | None
) -> str:
    """Write the run's report.html and report.json and return where the page is."""
    data = report.ReportData(
        run=context.run.id,
        metric=search.judged_metric(context.spec).name,
        plan=plan,
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
    context.notify(StageStarted("fit", sweep.describe(winner)))
    price = winner.candidate.placement.price_usd_per_hour
    tell = functools.partial(
        _tell, GaugePublisher(), {"job": context.spec.name, "run": context.run.id}
    )
    watch = FitWatch(context.notify, price, winner.prediction, context.clock, tell)
    place = folder / "tensorboard"

    def remark(text: str) -> None:
        context.notify(Remark(text))

    trained = select.winning_job(context.spec, winner)
    with tracking.track(trained, context.run.id, place, remark) as tracks:

        def take(event: Event) -> None:
            watch.show(event)
            tracks.take(event)

        def failed(failure: Failed, decision: Retry | GiveUp) -> None:
            done = _shown(failure, decision)
            context.run.note("failure", cause=failure.cause, message=failure.message, done=done)
            remark(f"{failure.message}: {done}")

        rules = fitting.Rules(
            context.spec.train.retry,
            context.spec.wait,
            context.spec.train.hang_after.total_seconds(),
            context.spec.train.min_workers,
            secrets_of(context.spec),
        )
        shelf = _shelf(context.run)
        result = fitting.fit(config, winner.candidate.placement, shelf, rules, take, failed, remark)
    if result.proof and result.proof.refusal:  # not recorded: a resumed run proves it again
        raise PublishError(
            f"the model is not published, because {result.proof.refusal}; the checkpoint stays in"
            f" {result.checkpoint.path}, and --resume tries again"
        )
    if context.storage.is_bucket:
        for path in place.glob("*"):
            context.run.keep(f"fit/{place.name}/{path.name}", path.read_bytes())
    steps = result.stopped_at or result.steps
    context.notify(StageFinished("fit", f"{steps} steps in {result.duration_s:.1f} s"))
    return replace(result, projections=tuple(watch.projections))


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
        context.notify(
            Remark(
                f"the whole run needs about {needed}, the budget leaves {left}:"
                " training will stop early"
            )
        )
    return budget.stop_after_s(left_s, winner.prediction)
