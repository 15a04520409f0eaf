"""The sweep: probe every candidate, try what changes learning, choose."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cluster.placement import Placement
from jobs.errors import RunError
from jobs.spec.quantities import format_metric
from orchestrator.availability import Availability
from orchestrator.context import Context
from orchestrator.decisions import budget, compiling, search, select
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import Taken
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner
from orchestrator.decisions.sweep import Sweep
from orchestrator.notices import Progress, StageFinished, StageStarted
from orchestrator.probing import confirm, probe, probe_compiled, probe_until_trials
from orchestrator.probing_beside import probing_beside
from orchestrator.records import receipt_text, runs
from orchestrator.speeds import Speeds
from orchestrator.stages import hyperparameter_search


def run_sweep(context: Context, plan: Plan) -> Sweep:
    """Probe, try, choose; without a sweep in the job, choose by price alone."""
    found = _swept(context, plan)
    context.tracking.log_winner(context.spec, found.winner)
    return found


def _swept(context: Context, plan: Plan) -> Sweep:
    run, begin = context.run, context.clock()
    recorded = run.read("winner", Winner)
    if recorded is not None:
        return _read_back(context, plan, recorded)
    devices = Availability(context, plan)
    plan = devices.preferred()
    if context.spec.sweep is None:
        winner = _choose(context, plan, devices)
        _keep_winner(context, winner)
        return Sweep(run.id, plan, (), (), (), winner, 0.0)
    speeds, left = probe_until_trials(context, plan, devices)
    trials = _try(context, plan, speeds, devices, left) if left else ()
    if any(candidate.placement in left for candidate in speeds.unmeasured):
        speeds = probe(context, plan, devices)
    probe_compiled(context, speeds, devices)
    plan = speeds.plan
    trials = trials or _try(context, plan, speeds, devices)
    winner = _choose(context, plan, devices, speeds, trials)
    if confirm(context, plan, speeds, winner, devices):
        winner = _choose(context, plan, devices, speeds, trials)
    duration = context.clock() - begin
    run.write("sweep_duration", duration)
    _keep_winner(context, winner)
    shown = (
        receipt_text.show_interval(winner.prediction.time_s, receipt_text.show_time)
        if winner.prediction
        else ""
    )
    context.notify(StageFinished("select", f"{winner}, full run {shown}"))
    if winner.compiling:
        context.remark(winner.compiling)
    cost = budget.sweep_cost_usd(plan, speeds.every, speeds.launches, trials)
    measured, predicted = speeds.measurements, speeds.predictions
    return Sweep(run.id, plan, measured, predicted, trials, winner, duration, cost)


def end_workers(context: Context, found: Sweep) -> Sweep:
    """End the workers that the run has kept, and return the sweep with the cost of their end."""
    if context.workers is None:
        return found
    context.workers.close()
    launches = context.workers.launches()
    for launch in launches:
        context.run.append("launches", launch)
    cost_usd = budget.sweep_cost_usd(found.plan, (), launches, ())
    return replace(found, cost_usd=found.cost_usd + cost_usd)


def adopt(context: Context, winner: Winner) -> None:
    """Record a winner in place of the one that the sweep chose, where it is another.

    Raises RunError when the run has been trained already.
    """
    recorded = context.run.read("winner", Winner)
    if recorded and _same(recorded, winner):
        return
    if context.is_trained:
        raise RunError(
            f"run {context.run.id} has trained another winner; sweep in a new run to train {winner}"
        )
    _keep_winner(context, winner)


def _same(one: Winner, other: Winner) -> bool:
    return (one.candidate.id, one.params) == (other.candidate.id, other.params)


def _keep_winner(context: Context, winner: Winner) -> None:
    """Record it, as a value and as a job of its own."""
    job = runs.to_job_file(select.winning_job(context.spec, winner))
    context.run.keep(runs.WINNER, job.encode())
    context.run.write("winner", winner)


def _read_back(context: Context, plan: Plan, recorded: Winner) -> Sweep:
    """What an interrupted run had found, its winner on the nodes that are there now.

    The winner of a run that is trained stays as it was recorded: its nodes may be gone.
    """
    speeds = Speeds(context, plan)
    trials = context.run.read_all("trials", TrialResult)
    if not context.is_trained:
        recorded = _placed(context, plan, recorded, speeds, trials)
    return Sweep(
        run=context.run.id,
        plan=speeds.plan,
        measurements=speeds.measurements,
        predictions=speeds.predictions,
        trials=trials,
        winner=recorded,
        duration_s=context.run.read("sweep_duration", float) or 0.0,
        cost_usd=budget.sweep_cost_usd(speeds.plan, speeds.every, speeds.launches, trials),
    )


def _placed(
    context: Context,
    plan: Plan,
    recorded: Winner,
    speeds: Speeds,
    trials: tuple[TrialResult, ...],
) -> Winner:
    """Returns the recorded winner on today's nodes, or another one where they stay busy."""
    devices = Availability(context, plan)
    recorded = select.relocate(recorded, plan)  # a new cluster knows none of the old nodes
    # those of the interrupted attempt have ended, and training has to start others
    now = {each.candidate: each for each in speeds.predictions}
    prediction = now.get(recorded.candidate.id, recorded.prediction)
    if prediction != recorded.prediction:
        recorded = replace(recorded, prediction=prediction)
        context.run.revise("winner", recorded)
    if not devices.await_free(recorded.candidate):
        found = speeds if context.spec.sweep else None
        recorded = _choose(context, plan, devices, found, trials)
        _keep_winner(context, recorded)
    return recorded


def _choose(
    context: Context,
    plan: Plan,
    devices: Availability,
    speeds: "Speeds | None" = None,
    trials: tuple[TrialResult, ...] = (),
) -> Winner:
    """The best whose devices can be had; without measurements, by price alone."""
    while True:
        if speeds is None:
            winner = select.select_unmeasured(plan.without(devices.busy, "stayed busy"))
        else:
            able, rows = devices.available(speeds.predictions), speeds.eval_rows
            winner = select.select(context.spec, plan, able, trials, rows)
        if devices.await_free(winner.candidate):
            busy = ", ".join(sorted(devices.busy))
            told = f"{winner.reason}; {busy} stayed busy" if busy else winner.reason
            measured, found = (speeds.measurements, speeds.predictions) if speeds else ((), ())
            why = compiling.verdict(context.spec, winner.candidate, measured, found)
            return replace(winner, reason=told, compiling=why)


def _try(
    context: Context,
    plan: Plan,
    speeds: "Speeds",
    devices: Availability,
    left: Sequence[Placement] = (),
) -> tuple[TrialResult, ...]:
    """Run the trials that are missing; of the placements left, probe meanwhile what can be."""
    spec, sweep = context.spec, context.spec.sweep
    if sweep is None or not search.quality_space(spec):
        return ()
    found = [t for t in context.run.read_all("trials", TrialResult) if not t.failure]
    total = search.trial_count(spec)
    if len(found) < total and speeds.must_end("more trials"):
        return tuple(found)
    chosen = _for_trials(plan, speeds, devices, max(1, total - len(found)), is_only=not left)
    if chosen is None:
        return ()  # what is left is probed first
    candidate, taken = chosen
    rows = max(m.train_rows for m in speeds.measurements)
    length = search.trial_budget(spec, rows, speeds.evaluation_steps(candidate))
    length = replace(length, width=speeds.width(candidate))
    known = len(found)
    context.notify(
        StageStarted("trials", f"{total} trials of up to {length.steps} steps on {candidate.id}")
    )

    def take(trial: TrialResult) -> None:
        found.append(trial)
        speeds.trials.append(trial)
        context.run.append("trials", trial)
        context.tracking.log_trial(spec, trial)
        context.notify(Progress("trials", len(found), total, _trial_text(trial), is_result=True))

    with (
        _launches_told(speeds),
        probing_beside(context, speeds, speeds.beside_trials(left) if left else ()),
    ):
        hyperparameter_search.run_trials(
            spec,
            candidate,  # on any node of its kind, as the leased one may be lost meanwhile
            length,
            tuple(found),
            concurrent=taken.devices // candidate.placement.workers,
            storage=context.run.folder,
            on_trial=take,
            workers=context.workers,
        )
    context.notify(StageFinished("trials", f"{len(found)} trials done"))
    speeds.take_trials(found[known:])  # what other processes timed may be old
    return tuple(found)


def _for_trials(
    plan: Plan, speeds: Speeds, devices: Availability, groups: int, *, is_only: bool
) -> tuple[Candidate, Taken] | None:
    """Takes the devices of the candidate that is tried, for up to `groups` trials at a time.

    Returns None if no measured candidate can have its devices; raises InfeasibleError then if what
    is measured is all there is (`is_only`).
    """
    while True:
        able = devices.available(speeds.predictions)
        if not able and not is_only:
            return None
        candidate = select.quality_candidate(plan, able)
        if taken := devices.await_free(candidate, groups):
            return candidate, taken


@contextlib.contextmanager
def _launches_told(speeds: Speeds) -> Iterator[None]:
    """Records the starts and ends of the run's workers at the end of the block, however it ends."""
    try:
        yield
    finally:
        speeds.take_launches()


def _trial_text(trial: TrialResult) -> str:
    values = ", ".join(f"{name.rsplit('.', 1)[-1]} {v}" for name, v in trial.params.items())
    if trial.failure:
        return f"{values} failed: {trial.failure}"
    step, score = trial.history[-1] if trial.history else (0, float("nan"))
    stopped = ", stopped early" if trial.stopped_early else ""
    return f"{values}: {format_metric(score)} after {step} steps{stopped}"
