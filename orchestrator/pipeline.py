"""A job from its plan to its receipt: each stage once, each result recorded."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster import catalogue, discovery
from cluster.inventory import Inventory
from cluster.telemetry import GaugePublisher, Sample
from jobs.errors import ClusterError, InfeasibleError
from jobs.spec import JobSpec
from jobs.training.events import Event
from orchestrator import availability, hub, notifications, preflight, sweeping, tracking
from orchestrator.context import Context
from orchestrator.decisions import search, select
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.select import Winner
from orchestrator.decisions.sweep import Sweep
from orchestrator.fitting import fit_stage
from orchestrator.harness import check_measured, harness_stage
from orchestrator.notices import Notice, Pace, Progress, StageFinished, StageStarted
from orchestrator.planning import plan_on
from orchestrator.publishing import Ahead, deploy_stage, publish_stage, upload_stage
from orchestrator.records import receipt as receipts
from orchestrator.records import report, runs
from orchestrator.records.outcome import Outcome
from orchestrator.records.receipt import FitResult, Receipt
from orchestrator.stages.secrets import secrets_of
from orchestrator.watch import PUBLISH_EVERY_S
from serve.deploy import deployment, endpoints


def run(context: Context) -> Outcome:
    """All stages of a job, those that a resumed run has finished read back."""
    context = _measured(context)
    with availability.requested_nodes(context) as keep:
        plan = plan_stage(context)
        with _tracked(context) as context, Ahead(context) as ahead:
            found = sweeping.run_sweep(context, plan)
            keep(found.winner.candidate.placement)
            found, fit, receipt = train_stage(context, found, ahead.take)
            with _meanwhile() as do:
                do(write_report, context, found, fit, receipt)
                model = publish_stage(context.run, context.spec, fit, context.notify, ahead.copy_of)
                do(context.tracking.log_files, context.spec, "model", [Path(model.path)])
                check_measured(context.spec, fit)
                check_limits(context.spec, found.winner, receipt)
                endpoint = deploy_stage(context, model, ahead) if context.spec.serve else None
            upload_stage(context, model)
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
        with _tracked(context) as context:
            found = sweeping.end_workers(context, sweeping.run_sweep(context, plan))
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
        with _tracked(context) as context:
            found = sweeping.run_sweep(context, plan)
            keep(found.winner.candidate.placement)
            found, fit, receipt = train_stage(context, found)
            write_report(context, found, fit, receipt)
            context.run.note("completed")
            return fit


def plan_stage(context: Context, wanted: Plan | None = None) -> Plan:
    """Decide what to try on the cluster as it is now, because nodes come and go.

    A run that is trained keeps its plan: the base model and the nodes that it was trained on may be
    gone. With `wanted` the plan has no more than the candidates of that one.
    """
    context.notify(StageStarted("plan", "checking data, base model and packages"))
    secrets_of(context.spec)  # what is missing is told before anything is done
    notifications.require_variables(context.spec)
    if context.spec.publish and not context.is_trained:
        hub.check_access(context.spec.publish)
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
    context.notify(StageStarted("plan", "checking that the base model suits the task"))
    preflight.check_base(context.spec)
    context.notify(StageStarted("plan", "reading the longest rows and counting memory"))
    plan = plan_on(context.spec, inventory)
    plan = plan.among(wanted) if wanted else plan
    context.run.write("inventory", inventory)
    context.run.write("plan", plan)
    for each in plan.remarks:
        context.remark(each)
    return plan


def train_stage(
    context: Context, found: Sweep, on_event: Callable[[Event], None] = lambda _: None
) -> tuple[Sweep, FitResult, Receipt]:
    """Train and judge the winner, and compare it with what was predicted.

    Returns the sweep with the cost of its workers' end too. `on_event` gets the fit's events.
    """
    fit = fit_stage(context, found.winner, found.cost_usd, on_event)
    found = sweeping.end_workers(context, found)  # harness and endpoint may need their devices
    fit = harness_stage(context, found.winner, fit, found.cost_usd)
    _give_back(context, found.winner)
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
    values = {"time_s": receipt.actual_time_s, "cost_usd": receipt.actual_cost_usd}
    known = {f"receipt/{name}": value for name, value in values.items() if value is not None}
    context.tracking.log_values(known)
    return found, fit, receipt


@contextlib.contextmanager
def _meanwhile() -> Iterator[Callable[..., Any]]:
    """Yields a function that begins a call in a thread, where one call follows another.

    The end of the block waits for them; an error of one is raised unless the block raises one. Once
    the run is interrupted, no further call begins.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        begun = list[Future[Any]]()
        try:
            yield lambda work, *given: begun.append(pool.submit(work, *given))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=not isinstance(error, Exception))
            raise
        for each in begun:
            each.result()


def _give_back(context: Context, winner: Winner) -> None:
    """End the lease of the fit, unless the endpoint needs such devices next."""
    serving = context.spec.serve
    sku = catalogue.find(serving.accelerators.name).name if serving else None
    if sku != winner.candidate.placement.sku:
        with contextlib.suppress(ClusterError):  # what is trained needs no queue
            context.devices.give_back()


@contextlib.contextmanager
def _tracked(context: Context) -> Iterator[Context]:
    """Yields the same with the trackers of the job, which are opened before anything is tried."""
    run, spec, is_trained = context.run, context.spec, context.is_trained
    with tracking.tracked(run, spec, context.remark, is_trained=is_trained) as found:
        yield replace(context, tracking=found)


def _measured(context: Context) -> Context:
    """The same, with its progress told to Prometheus too, and from one thread at a time.

    A signal's handler may tell something while its own thread does.
    """
    teller, notify, lock = GaugePublisher(), context.notify, threading.RLock()
    pace = Pace(PUBLISH_EVERY_S, context.clock)

    def tell(notice: Notice) -> None:
        with lock:
            notify(notice)
        if not isinstance(notice, Progress):
            return
        if pace.is_due(notice.stage, is_last=notice.done >= notice.total):
            labels = {"job": context.spec.name, "run": context.run.id, "stage": notice.stage}
            counts = {"winnow_stage_done": notice.done, "winnow_stage_total": notice.total}
            teller.publish(Sample(name, value, labels) for name, value in counts.items())

    return replace(context, notify=tell)


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
    page = context.run.keep(report.PAGE, report.render(data).encode())
    if receipt or found.trials:
        names = (report.PAGE, report.DATA, runs.WINNER)
        files = [context.run.local_copy(name) for name in names]
        context.tracking.log_files(context.spec, "report", files)
    return page


def _metric_limits(spec: JobSpec) -> dict[str, float]:
    limits = spec.sweep.objective.subject_to if spec.sweep else {}
    return {name: bound.value for name, bound in limits.items()}
