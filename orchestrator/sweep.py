"""The sweep: probe every candidate, try what changes learning, choose."""

from dataclasses import dataclass

from cluster import discovery
from orchestrator.context import Context
from orchestrator.decisions import predict, search, select
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.predict import Measurement, Prediction
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner
from orchestrator.notices import Progress, StageFinished, StageStarted
from orchestrator.records import report, runs
from orchestrator.stages import quality, speed


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the two sweep stages found."""

    measurements: tuple[Measurement, ...]
    predictions: tuple[Prediction, ...]
    trials: tuple[TrialResult, ...]
    winner: Winner
    duration_s: float


def run_sweep(context: Context, plan: Plan) -> Sweep:
    """Probe, try, choose; without a sweep in the job, choose by price alone."""
    run, begin = context.run, context.clock()
    recorded = run.read("winner", Winner)
    if recorded is not None:
        return _read_back(context, plan, recorded)
    if context.spec.sweep is None:
        winner = select.select_unmeasured(plan)
        run.write("winner", winner)
        return Sweep((), (), (), winner, 0.0)
    measurements = _probe(context, plan)
    predictions = predict.predict_all(context.spec, plan.candidates, measurements)
    trials = _try(context, plan, measurements, predictions)
    winner = select.select(context.spec, plan, predictions, trials)
    duration = context.clock() - begin
    run.write("sweep_duration", duration)
    run.write("winner", winner)
    winning = select.winning_job(context.spec, winner)
    runs.write_atomically(run.folder / "winner.yaml", runs.to_yaml(winning).encode())
    shown = (
        report.show_interval(winner.prediction.time_s, report.show_time)
        if winner.prediction
        else ""
    )
    context.notify(StageFinished("select", f"{describe(winner)}, full run {shown}"))
    return Sweep(measurements, predictions, trials, winner, duration)


def _read_back(context: Context, plan: Plan, recorded: Winner) -> Sweep:
    """What an interrupted run had found, its winner on the nodes that are there now."""
    measurements = context.run.read_all("measurements", Measurement)
    return Sweep(
        measurements=measurements,
        predictions=predict.predict_all(context.spec, plan.candidates, measurements),
        trials=context.run.read_all("trials", TrialResult),
        winner=select.relocate(recorded, plan),
        duration_s=context.run.read("sweep_duration", float) or 0.0,
    )


def describe(winner: Winner) -> str:
    """The winner in a few words."""
    values = (f"{name.rsplit('.', 1)[-1]} {value}" for name, value in winner.params.items())
    return ", ".join((winner.candidate.id, *values))


def _probe(context: Context, plan: Plan) -> tuple[Measurement, ...]:
    found = {m.candidate: m for m in context.run.read_all("measurements", Measurement)}
    total = len(plan.candidates)
    context.notify(
        StageStarted("probe", f"{total} candidates on {len(plan.placements)} placements")
    )

    def take(measured: Measurement) -> None:
        found[measured.candidate] = measured
        context.run.append("measurements", measured)
        speed_text = f"{measured.step_s.mean:.3f} s a step" if measured.step_s else "out of memory"
        context.notify(Progress("probe", len(found), total, f"{measured.candidate}: {speed_text}"))

    todo = [candidate for candidate in plan.candidates if candidate.id not in found]
    if todo:
        speed.measure(context.spec, todo, context.run.folder, take)
    context.notify(StageFinished("probe", f"{total} candidates measured"))
    return tuple(found[candidate.id] for candidate in plan.candidates)


def _try(
    context: Context,
    plan: Plan,
    measurements: tuple[Measurement, ...],
    predictions: tuple[Prediction, ...],
) -> tuple[TrialResult, ...]:
    spec, sweep = context.spec, context.spec.sweep
    if sweep is None or not search.quality_space(spec):
        return ()
    candidate = select.quality_candidate(plan, predictions)
    budget = search.trial_budget(spec, measurements[0].train_rows)
    found = [t for t in context.run.read_all("trials", TrialResult) if not t.failure]
    total = search.trial_count(spec)
    context.notify(
        StageStarted("trials", f"{total} trials of up to {budget.steps} steps on {candidate.id}")
    )

    def take(trial: TrialResult) -> None:
        found.append(trial)
        context.run.append("trials", trial)
        context.notify(Progress("trials", len(found), total, _trial_text(trial)))

    devices = discovery.discover().counts()[candidate.placement.sku]
    quality.run_trials(
        spec,
        candidate,
        budget,
        tuple(found),
        concurrent=max(1, devices // candidate.placement.workers),
        storage=context.run.folder,
        on_trial=take,
    )
    context.notify(StageFinished("trials", f"{len(found)} trials done"))
    return tuple(found)


def _trial_text(trial: TrialResult) -> str:
    values = ", ".join(f"{name.rsplit('.', 1)[-1]} {v}" for name, v in trial.params.items())
    if trial.failure:
        return f"{values} failed: {trial.failure}"
    step, score = trial.history[-1] if trial.history else (0, float("nan"))
    stopped = ", stopped early" if trial.stopped_early else ""
    return f"{values}: {score:.4f} after {step} steps{stopped}"
