"""Decides what a sweep probes beside its trials, on other devices."""

from collections.abc import Callable, Sequence

from cluster.placement import Placement
from jobs.spec import JobSpec
from orchestrator.decisions import compiling, search, select
from orchestrator.decisions.measurement import Prediction
from orchestrator.decisions.plan import Plan


def beside_trials(
    spec: JobSpec,
    plan: Plan,
    predictions: Sequence[Prediction],
    left: Sequence[Placement],
    has_room: Callable[[Placement], bool],
    can_have: Callable[[Placement], bool],
) -> tuple[Placement, ...]:
    """Returns the placements among those left to probe that can be probed while trials run.

    Trials begin before all placements are probed if no probe can change what they find, because
    all candidates have one precision; if no placement left is expected to be cheaper, and no
    compiled candidate may be; and if their own devices can be had at once (`can_have`). What is
    probed meanwhile must have nodes of its own, where nothing slows the trials' steps, and devices
    that no other run wants (`has_room`).
    """
    if not predictions or not search.quality_space(spec):
        return ()
    if len({candidate.precision for candidate in plan.candidates}) > 1:
        return ()
    if compiling.to_probe(plan.compiled, predictions):
        return ()
    own = select.quality_candidate(plan, predictions).placement
    order = list(dict.fromkeys(candidate.placement for candidate in plan.probing_order))
    if any(order.index(placement) < order.index(own) for placement in left):
        return ()
    apart = (placement for placement in left if not {*own.node_ids} & {*placement.node_ids})
    found = tuple(placement for placement in apart if has_room(placement))
    return found if found and can_have(own) else ()
