"""What a run may still spend, and when training must stop for it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.errors import InfeasibleError
from jobs.spec.job import BudgetSpec
from orchestrator.decisions import budget
from orchestrator.decisions.budget import Spent
from orchestrator.decisions.measurement import Launch, Phases, Prediction
from tests.builders import any_of, inventory, job, measurement, plan_of, prediction, trial

SPEC = job(
    train__precision="fp16",
    train__micro_batch_size=16,
    resources__any_of=any_of("T4:2"),
    prices={"T4": 1.8},
)
PLAN = plan_of(SPEC, inventory(T4=2))
ID = "T4:2/16/fp16"


def predicted(total_s: float, stepping_s: float) -> Prediction:
    """A prediction with 10 s of starting, and the rest for judging, saving and ending."""
    found = prediction(ID, time_s=total_s, cost_usd=None)
    phases = Phases(4.0, 6.0, stepping_s, total_s - stepping_s - 16.0, 4.0, 2.0)
    return Prediction(found.candidate, 100, found.time_s, None, phases)


def test_a_sweep_costs_what_its_probes_starts_and_trials_took() -> None:
    trials = [replace(trial(ID, 1e-4, 0.9), duration_s=50.0)]
    probes = [measurement(ID, probe_s=30.0), measurement("gone:1/8/fp16", probe_s=99.0)]
    launches = [Launch("T4:2", 8.0, is_apart=True), Launch("T4:2", end_s=2.0, is_apart=True)]
    launches.append(Launch("T4:2", 7.0, 1.0, is_reused=True))
    launches.append(Launch("T4:2", 9.0))  # of an older release, within a trial
    found = budget.sweep_cost_usd(PLAN, probes, launches, trials)
    assert found == pytest.approx((30 + 10 + 50) * 3.6 / 3600)


def test_without_a_budget_nothing_is_limited() -> None:
    assert budget.seconds_left(None, Spent(1e9, 1e9), None) is None
    assert budget.stop_after_s(None, None) is None


def test_the_tighter_of_time_and_cost_counts() -> None:
    limits = BudgetSpec(max_cost=1.0, max_duration="10m")
    assert budget.seconds_left(limits, Spent(100.0, 0.5), 3.6) == pytest.approx(500.0)
    assert budget.seconds_left(limits, Spent(400.0, 0.9), 3.6) == pytest.approx(100.0)


def test_devices_that_cost_nothing_are_not_limited_by_cost() -> None:
    assert budget.seconds_left(BudgetSpec(max_cost=1.0), Spent(9.0), 0.0) is None


@pytest.mark.parametrize(
    ("limits", "price", "words"),
    [
        (BudgetSpec(max_duration=timedelta(seconds=60)), 1.0, "used up the budget"),
        (BudgetSpec(max_cost=5.0), None, "no known price"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(
    limits: BudgetSpec, price: float | None, words: str
) -> None:
    with pytest.raises(InfeasibleError, match=words):
        budget.seconds_left(limits, Spent(60.0), price)


def test_training_stops_early_enough_to_be_judged_and_saved() -> None:
    """Of 60 s, 10 go by before the first step and 8 after the last one."""
    assert budget.stop_after_s(60.0, predicted(118.0, 100.0)) == pytest.approx(60 - 10 - 8)
    assert budget.stop_after_s(60.0, None) == 60.0
    assert budget.stop_after_s(5.0, predicted(118.0, 100.0)) == 0.0


@pytest.mark.parametrize(
    ("limits", "spent", "ends"),
    [
        (BudgetSpec(max_duration="10m"), Spent(470.0), False),
        (BudgetSpec(max_duration="10m"), Spent(490.0), True),
        (BudgetSpec(max_cost=1.0), Spent(1e6, 0.87), False),
        (BudgetSpec(max_cost=1.0), Spent(0.0, 0.9), True),
        (None, Spent(1e9, 1e9), False),
    ],
)
def test_a_sweep_ends_before_it_uses_up_what_a_known_run_needs(
    limits: BudgetSpec | None, spent: Spent, *, ends: bool
) -> None:
    known = [
        prediction(ID, time_s=100.0, cost_usd=0.1),
        prediction("T4:2/8/fp16", time_s=300.0, cost_usd=0.3),
    ]
    assert budget.ends_sweep(limits, spent, known) is ends
    assert budget.ends_sweep(limits, spent, []) is False
