"""Plans and sweeps as data frames: one row each, by id, with units in the names of columns."""

from dataclasses import replace

from orchestrator import data_frames
from orchestrator.decisions import select
from orchestrator.decisions.sweep import Sweep
from tests.builders import any_of, inventory, job, measurement, plan_of, prediction, trial


def test_a_plan_has_a_row_for_each_candidate_and_for_each_that_is_skipped() -> None:
    spec = job(resources__any_of=any_of("T4:1", "L40S:1"), train__micro_batch_size=16)
    plan = plan_of(spec, inventory(T4=1))
    frame = data_frames.plan_frame(plan)
    assert list(frame.index) == [each.id for each in (*plan.candidates, *plan.skipped)]
    (candidate,) = plan.candidates
    row = frame.loc[candidate.id]
    assert (row["accelerator"], row["workers"], row["micro_batch_size"]) == ("T4", 1, 16)
    assert set(frame["skipped"].dropna()) == {left.reason for left in plan.skipped}


def test_a_sweep_has_its_candidates_with_the_soonest_done_first_and_those_not_measured_last() -> (
    None
):
    spec = job(resources__any_of=any_of("T4:1", "T4:2", "T4:4"), train__micro_batch_size=8)
    plan = plan_of(spec, inventory(T4=4))
    one, two, four = (candidate.id for candidate in plan.candidates)
    trials = (
        replace(trial(one, 1e-4, 0.9), history=((10, 0.8), (20, 0.9))),
        replace(trial(one, 1e-3, 0.5), failure="the loss is not finite"),
    )
    found = Sweep(
        run="r",
        plan=plan,
        measurements=(measurement(one), measurement(two)),
        predictions=(
            prediction(one, time_s=100, cost_usd=1.0),
            prediction(two, time_s=60, cost_usd=2.0),
        ),
        trials=trials,
        winner=select.select_unmeasured(plan),
        duration_s=5.0,
    )
    frame = data_frames.candidate_frame(found)
    assert list(frame.index) == [two, one, four]
    assert list(frame["time_s"][:2]) == [60, 100]
    assert list(frame["cost_usd_high"][:2]) == [2.0, 1.0]
    assert frame["time_s"].isna().tolist() == [False, False, True]
    tried = data_frames.trial_frame(trials)
    assert tried["train.optimizer.lr"].tolist() == [1e-4, 1e-3]
    assert tried["accuracy"].tolist() == [0.9, 0.5]
    assert tried["steps"].tolist() == [20, 0]
    assert tried["failure"].tolist()[1] == "the loss is not finite"
    curves = data_frames.curve_frame(trials)
    assert curves.to_dict("list") == {
        "trial": [trials[0].id] * 2,
        "step": [10, 20],
        "score": [0.8, 0.9],
    }
