"""Decides what a sweep probes beside its trials, on other devices."""

from collections.abc import Callable, Sequence

from cluster.placement import Placement
from jobs.spec import JobSpec
from orchestrator.decisions import search, select
from orchestrator.decisions.measurement import Prediction
from orchestrator.decisions.plan import Plan


def beside_trials(
    spec: JobSpec,
    plan: Plan,
    predictions: Sequence[Prediction],
    left: Sequence[Placement],
    has_room: Callable[[Placement], bool],
) -> tuple[Placement, ...]:
    """Returns the placements among those left to probe that can be probed while trials run.

    Trials begin before all placements are probed if no probe can change what they find, because
    all candidates have one precision, and if none of the placements left is expected to be cheaper.
    What is probed meanwhile must have nodes of its own, where nothing slows the trials' steps, and
    devices that no other run wants.
    """
    if not predictions or not search.quality_space(spec):
        return ()
    if len({candidate.precision for candidate in plan.candidates}) > 1:
        return ()
    own = select.quality_candidate(plan, predictions).placement
    order = list(dict.fromkeys(candidate.placement for candidate in plan.probing_order))
    if any(order.index(placement) < order.index(own) for placement in left):
        return ()
    apart = (placement for placement in left if not {*own.node_ids} & {*placement.node_ids})
    return tuple(placement for placement in apart if has_room(placement))
