"""The speed half of a sweep: probes of candidates, read back or run."""

import functools
from collections.abc import Sequence
from dataclasses import replace

from cluster.placement import Placement
from jobs.errors import ClusterError, TrainingError
from orchestrator.availability import Availability
from orchestrator.context import Context
from orchestrator.decisions import compiling, predict
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.leases import Taken
from orchestrator.decisions.measurement import NOT_COMPILABLE, Launch, Measurement
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.resolve import training_config
from orchestrator.decisions.select import Winner
from orchestrator.notices import StageFinished, StageStarted
from orchestrator.records.store import Store, is_same_environment
from orchestrator.speeds import Speeds
from orchestrator.stages import speed


def probe(
    context: Context, plan: Plan, devices: Availability, *, is_thorough: bool = False
) -> Speeds:
    """Probe each candidate whose devices can be had, unless an earlier measurement still holds.

    With `is_thorough` none is given up early.
    """
    return _probe(context, plan, devices, is_thorough=is_thorough)[0]


def probe_until_trials(
    context: Context, plan: Plan, devices: Availability
) -> tuple[Speeds, tuple[Placement, ...]]:
    """Probe as `probe` does, but leave what can be probed beside trials.

    Returns the placements that are left too, some of which may have to wait for the trials.
    """
    return _probe(context, plan, devices, leaves_rest=True)


def _probe(
    context: Context,
    plan: Plan,
    devices: Availability,
    *,
    is_thorough: bool = False,
    leaves_rest: bool = False,
) -> tuple[Speeds, tuple[Placement, ...]]:
    speeds, left = Speeds(context, plan), list[Placement]()
    total = len(plan.candidates)
    context.notify(
        StageStarted("probe", f"{total} candidates on {len(plan.placements)} placements")
    )
    if not is_thorough:
        _take_over(context, plan.candidates, speeds, Store(context.storage))

    def first_free(placements: Sequence[Placement]) -> Taken | None:
        if must_end(speeds, placements):
            return None
        if leaves_rest and speeds.beside_trials(placements):
            left.extend(placements)
            return None
        return devices.first_free(placements)

    if todo := speeds.unmeasured:
        give_up = None if is_thorough else speeds.give_up
        findings = speed.ProbeCallbacks(
            speeds.take, speeds.take_launch, give_up, context.remark, first_free
        )
        speed.measure(context.spec, todo, context.run.folder, findings, workers=context.workers)
    keep_firsts(context, speeds, plan.candidates)
    firsts = [speeds.measured[c.id][0] for c in plan.candidates if c.id in speeds.measured]
    unprobed, given_up = sum(bool(m.slower) for m in firsts), sum(m.is_given_up for m in firsts)
    counts = {"given up early": given_up, "not needed": unprobed}
    texts = [f"{count} {what}" for what, count in counts.items() if count]
    text = ", ".join((f"{len(firsts) - unprobed} candidates measured", *texts))
    context.notify(StageFinished("probe", text))
    return speeds, tuple(left)


def must_end(speeds: Speeds, placements: Sequence[Placement]) -> bool:
    """Whether the budget leaves too little for probes on placements; the user is told if so."""
    return speeds.must_end(f"probes on {', '.join(placement.name for placement in placements)}")


def probe_compiled(context: Context, speeds: Speeds, devices: Availability) -> None:
    """Time candidates compiled too, where their runs are long enough.

    A failure is recorded, and leaves the candidates that are not compiled as they are.
    """
    store = Store(context.storage)
    worthy = compiling.to_probe(speeds.plan.compiled, devices.available(speeds.predictions))
    for candidate in worthy:
        if speeds.must_end(f"probe of {candidate.id}"):
            return
        plain = replace(candidate, compiled=False).id
        context.notify(StageStarted("compile", f"{plain}, whose run is long enough to pay for it"))
        speeds.add(candidate)
        _take_over(context, [candidate], speeds, store)
        if candidate.id not in speeds.measured:
            _time_compiled(context, speeds, candidate, devices)
        text = "not measured"
        for measured in speeds.measured.get(candidate.id, ()):
            _keep(context, candidate, measured, speeds.launches, store)
            text = compiling.gain(predict.settle(speeds.measured[plain]), measured)
        context.notify(StageFinished("compile", f"{candidate.id}: {text}"))


def _time_compiled(
    context: Context, speeds: Speeds, candidate: Candidate, devices: Availability
) -> None:
    """Time a compiled candidate in a worker group of its own."""
    first_free = functools.partial(devices.first_free, is_optional=True)
    callbacks = speed.ProbeCallbacks(
        speeds.take, speeds.take_launch, speeds.give_up, context.remark, first_free
    )
    try:
        speed.measure(
            context.spec,
            [candidate],
            context.run.folder,
            callbacks,
            rounds=1,
            workers=context.workers,
            is_fresh=True,
        )
    except TrainingError as error:
        speeds.take(Measurement(candidate.id, None, failure=str(error), fault=NOT_COMPILABLE))
        context.remark(f"{candidate.id} is left out: {error}")
    except ClusterError as error:
        context.remark(f"{candidate.id} was not measured: {error}")


def _take_over(
    context: Context, candidates: Sequence[Candidate], speeds: Speeds, store: Store
) -> None:
    """Measurements of earlier runs, where hardware, software, code and data are still the same."""
    environments: dict[str, dict[str, str]] = {}
    for candidate in candidates:
        if candidate.id in speeds.measured:
            continue
        found = store.find(candidate, training_config(context.spec, candidate.execution, {}))
        if found is None:
            continue
        placement = candidate.placement
        if placement.name not in environments:
            environments[placement.name] = speed.environment_of(placement)
        if is_same_environment(found, environments[placement.name]):
            context.remark(f"{candidate.id}: measured in an earlier run")
            speeds.take(replace(found.measurement, probe_s=0.0))  # it costs nothing now
            if found.launch and placement.name not in {o.placement for o in speeds.launches}:
                speeds.take_launch(replace(found.launch, is_reused=True))


def keep_firsts(context: Context, speeds: Speeds, candidates: Sequence[Candidate]) -> None:
    """Keep the first measurement of candidates for later runs."""
    store = Store(context.storage)
    for candidate in candidates:
        for measured in speeds.measured.get(candidate.id, ())[:1]:
            _keep(context, candidate, measured, speeds.launches, store)


def _keep(
    context: Context,
    candidate: Candidate,
    measured: Measurement,
    launches: Sequence[Launch],
    store: Store,
) -> None:
    own = [each for each in launches if each.placement == candidate.placement.name]
    starts = [each.start_s for each in own if each.start_s is not None]
    ends = [each.end_s for each in own if each.end_s is not None]
    name = candidate.placement.name
    launch = Launch(name, starts[-1] if starts else None, ends[-1] if ends else None)
    config = training_config(context.spec, candidate.execution, {})
    store.keep(candidate, config, measured, launch)


def confirm(
    context: Context,
    plan: Plan,
    speeds: Speeds,
    winner: Winner,
    devices: Availability,
) -> bool:
    """Time the best again right before the choice, and a third time where that disagrees.

    Steps of its trials count as the second timing. Returns whether anything was timed; a failure
    only leaves the first timing as it is.
    """
    timed = False
    for attempts in (2, 3):
        todo = [
            plan.candidate(name)
            for name in winner.finalists
            if len(speeds.timings(name)) < attempts
            and (attempts == 2 or predict.are_apart(speeds.timings(name)))
        ]
        if todo and not speeds.must_end("timing again"):
            timed = _time_again(context, speeds, todo, devices) or timed
    return timed


def _time_again(
    context: Context, speeds: Speeds, todo: Sequence[Candidate], devices: Availability
) -> bool:
    """Time candidates briefly; returns whether any has a new measurement."""
    names, before = " and ".join(candidate.id for candidate in todo), len(speeds.every)
    context.notify(StageStarted("confirm", f"{names} again"))
    first_free = functools.partial(devices.first_free, is_optional=True)
    callbacks = speed.ProbeCallbacks(
        speeds.take, speeds.take_launch, log=context.remark, first_free=first_free
    )
    try:
        speed.measure(
            context.spec,
            todo,
            context.run.folder,
            callbacks,
            is_brief=True,
            workers=context.workers,
        )
    except (TrainingError, ClusterError) as error:
        context.remark(f"{names} could not be timed again, so the first timing counts: {error}")
    return len(speeds.every) > before
