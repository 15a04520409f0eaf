"""Derives from a job's budget what a run may still spend, and how long training may take."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.errors import InfeasibleError
from jobs.spec.job import BudgetSpec
from orchestrator.decisions.measurement import Launch, Measurement, Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.search import TrialResult

RESERVE = 1.2
"""A sweep continues while the budget left exceeds this multiple of the cheapest predicted run."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The time and money that a run has used."""

    seconds: float
    """Wall time."""
    usd: float = 0.0
    """Cost of placements with a known price."""


def sweep_cost_usd(
    plan: Plan,
    measurements: Sequence[Measurement],
    launches: Sequence[Launch],
    trials: Sequence[TrialResult],
) -> float:
    """Returns the cost of probes, starts and ends of groups, and trials, where prices are known.

    In runs of older releases a launch without an end is counted elsewhere too.
    """
    by_id = {candidate.id: candidate.placement for candidate in plan.candidates}
    by_name = {placement.name: placement for placement in plan.placements}
    used = [(by_id.get(m.candidate), m.probe_s) for m in measurements]
    used += [
        (by_name.get(launch.placement), (launch.start_s or 0.0) + (launch.end_s or 0.0))
        for launch in launches
        if not launch.is_reused and (launch.is_apart or launch.end_s is not None)
    ]
    used += [(by_id.get(trial.candidate), trial.duration_s) for trial in trials]
    return sum(
        seconds * (placement.price_usd_per_hour or 0.0) / 3600
        for placement, seconds in used
        if placement is not None
    )


def ends_sweep(budget: BudgetSpec | None, spent: Spent, found: Sequence[Prediction]) -> bool:
    """Returns whether the sweep must end, so that the budget suffices for a predicted full run."""
    if budget is None or not found:
        return False
    costs = [p.cost_usd.mean for p in found if p.cost_usd is not None]
    seconds = min(p.time_s.mean for p in found)
    is_late = budget.max_duration is not None and (
        budget.max_duration.total_seconds() - spent.seconds < RESERVE * seconds
    )
    is_dear = budget.max_cost is not None and (
        bool(costs) and budget.max_cost - spent.usd < RESERVE * min(costs)
    )
    return is_late or is_dear


def seconds_left(
    budget: BudgetSpec | None, spent: Spent, price_usd_per_hour: float | None
) -> float | None:
    """Returns how long the fit may take; None without a budget that limits it.

    Raises:
        InfeasibleError: if nothing is left, or the budget limits cost and the price is unknown.
    """
    left = remaining_s(budget, spent, price_usd_per_hour)
    if left is not None and left <= 0:
        raise InfeasibleError(
            f"the sweep used up the budget: it took {spent.seconds:.0f} s and {spent.usd:.4g} USD;"
            " raise the budget or search less"
        )
    return left


def remaining_s(
    budget: BudgetSpec | None, spent: Spent, price_usd_per_hour: float | None
) -> float | None:
    """Returns for how long the budget suffices at a price; None if it limits nothing.

    Raises:
        InfeasibleError: if the budget limits cost and the price is unknown.
    """
    if budget is None:
        return None
    limits = []
    if budget.max_duration is not None:
        limits.append(budget.max_duration.total_seconds() - spent.seconds)
    if budget.max_cost is not None:
        if price_usd_per_hour is None:
            raise InfeasibleError(
                "budget.max_cost cannot be kept: this accelerator has no known price; add it under"
                " prices"
            )
        if price_usd_per_hour > 0:
            limits.append((budget.max_cost - spent.usd) / price_usd_per_hour * 3600)
    return min(limits, default=None)


def stop_after_s(left_s: float | None, prediction: Prediction | None) -> float | None:
    """Returns the seconds of training that leave time to evaluate and save within the budget."""
    if left_s is None:
        return None
    phases = prediction.phases if prediction else None
    if phases is None:
        return left_s
    before, after = phases.start + phases.setup, phases.checkpoints + phases.end
    return max(0.0, left_s - before - after - phases.evaluations)
