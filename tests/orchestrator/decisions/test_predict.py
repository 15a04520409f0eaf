"""From probed steps to the time and cost of the full run, and to giving up what is worse."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from jobs.training.events import OutOfMemory, Probed
from jobs.training.probing.timing import OTHER_PRECISION, GiveUp, Limit
from jobs.training.step_times import StepTimes
from orchestrator.decisions import predict
from orchestrator.decisions.measurement import Interval, Launch, Measurement, Prediction, summarise
from orchestrator.decisions.plan import Plan
from tests.builders import (
    any_of,
    inventory,
    job,
    measurement,
    overheads,
    plan_of,
    prediction,
    speed,
    sweep,
)

SPEC = job(
    train__epochs=2,
    train__precision="fp16",
    train__micro_batch_size=16,
    resources__any_of=any_of("T4:1", "L40S:1"),
    prices={"T4": 3.6, "L40S": 7.2},
    sweep=sweep({"train.micro_batch_size": [16, 32]}),
)
PLAN = plan_of(SPEC, inventory(T4=1, L40S=1))
ID = "T4:1/16/fp16"


def predicted(*measured: Measurement, launches: tuple[Launch, ...] = ()) -> list[Prediction]:
    """Predictions of the job."""
    return list(predict.predict_all(SPEC, PLAN.candidates, measured, launches))


def test_the_run_s_mean_step_comes_from_the_widths_of_the_whole_run() -> None:
    times = StepTimes((8, 8, 16, 16, 8, 16), (0.2, 0.2, 0.4, 0.4, 0.2, 0.4), (2, 2, 2))
    event = Probed(
        candidate=ID,
        times=times,
        steps_of_width={8: 5, 32: 15},
        overheads=None,
        is_given_up=False,
        is_steady=True,
        speed=speed(),
        train_rows=320,
        eval_rows=100,
        probe_s=9.0,
    )
    measured = summarise(event)
    assert measured.steps == 20
    assert measured.step_s is not None
    assert measured.step_s.mean == pytest.approx((5 * 0.2 + 15 * 0.8) / 20)


def test_a_full_run_is_the_sum_of_its_phases() -> None:
    found = predicted(measurement(ID), launches=(Launch("T4:1", 10.0, 1.0),))[0]
    phases = found.phases
    assert phases is not None
    assert phases.start == 10.0
    assert phases.setup == 4.0 + 1.0 + 0.5
    assert phases.steps == 20 * 0.5
    assert (
        phases.evaluations == 2.0 + 3.0
    )  # after each of two epochs, the last in another precision
    assert phases.checkpoints == 0.75 + 0.5
    assert phases.end == 0.125 + 1.0
    assert found.time_s.mean == phases.total
    assert found.cost_usd is not None
    assert found.cost_usd.mean == pytest.approx(phases.total * 0.001)


def test_a_save_waits_until_the_one_before_it_is_written() -> None:
    spec = job(
        train__epochs=2,
        train__precision="fp16",
        train__micro_batch_size=16,
        train__checkpoint__every="5steps",
        resources__any_of=any_of("T4:1"),
    )
    candidates = plan_of(spec, inventory(T4=1)).candidates
    # 4 s to write, every 2.5 s of steps
    slow = overheads(save_s=0.5, final_save_s=4.5, scoring_s=0.0)
    (found,) = predict.predict_all(spec, candidates, [measurement(ID, overheads=slow)], ())
    assert found.phases is not None
    assert found.phases.checkpoints == 3 * (0.5 + 1.5) + 4.5


def test_what_only_the_first_of_a_group_pays_every_full_run_pays() -> None:
    first = measurement(ID, overheads=overheads(setup_s=4.0, first_use_s=1.0))
    second = measurement("T4:1/32/fp16", overheads=overheads(setup_s=0.1, first_use_s=0.0))
    times = [found.time_s.mean for found in predicted(first, second)]
    assert times[0] == times[1]


def test_the_start_is_the_median_of_the_groups_of_the_same_placement() -> None:
    """The first group of a cluster starts slowly, because Ray starts more than its workers."""
    starts = [*(Launch("T4:1", start_s, 1.0) for start_s in (40.0, 12.0, 13.0))]
    launches = (*starts, Launch("L40S:1", 99.0, 1.0))
    phases = predicted(measurement(ID), launches=launches)[0].phases
    assert phases is not None
    assert phases.start == 13.0


@pytest.mark.parametrize(
    "measured",
    [
        summarise(OutOfMemory(ID, "tried to allocate")),
        measurement(ID, overheads=None, is_given_up=True),
    ],
)
def test_a_probe_without_an_end_has_no_prediction(measured: Measurement) -> None:
    assert predicted(measured) == []


def test_repeated_probes_settle_on_the_median_in_a_range_that_holds_all() -> None:
    steps = [0.5, 0.6, 0.51]
    settled = predict.settle([measurement(ID, step) for step in steps])
    assert settled.step_s is not None
    assert settled.step_s.mean == 0.51
    assert settled.step_s.low == pytest.approx(0.42)
    assert settled.step_s.high >= 0.6
    assert settled.overheads == overheads()


@pytest.mark.parametrize(("other", "expected"), [(0.505, False), (0.56, True)])
def test_probes_that_disagree_need_a_third(other: float, *, expected: bool) -> None:
    assert predict.are_apart([measurement(ID, 0.5), measurement(ID, other)]) is expected


def test_scatter_explains_a_difference_on_a_busy_machine() -> None:
    wide = [replace(measurement(ID), step_s=Interval(s - 0.1, s, s + 0.1)) for s in (0.5, 0.56)]
    assert not predict.are_apart(wide)


def test_giving_up_needs_something_better_in_time_and_in_cost() -> None:
    """L40S costs twice as much as T4 here: slower than a T4 run is enough, cheaper is not."""
    found = [prediction(ID, time_s=100, cost_usd=0.1)]
    assert limit(PLAN, "T4:1/32/fp16", found) == Limit(pytest.approx(100 / 20), ID)
    assert limit(PLAN, "L40S:1/16/fp16", found) == Limit(pytest.approx(100 / 20), ID)
    dear = [prediction("L40S:1/16/fp16", time_s=60, cost_usd=0.12)]
    assert limit(PLAN, "T4:1/32/fp16", dear) == Limit(pytest.approx(120 / 20), "L40S:1/16/fp16")
    assert limit(PLAN, "T4:1/32/fp16", []) is None


BOTH = job(
    train__micro_batch_size=16,
    resources__any_of=any_of("T4:1", "L40S:1"),
    prices={"T4": 3.6, "L40S": 7.2},
    sweep=sweep({"train.precision": ["fp16", "fp32"], "train.optimizer.lr": [1e-4, 1e-3]}),
)
ANY = plan_of(BOTH, inventory(T4=1, L40S=1))
ON_T4 = plan_of(BOTH, inventory(T4=1))
WIDE = "T4:1/16/fp32"


def given_up(
    plan: Plan, name: str, found: Sequence[Prediction], *, has_trials: bool = True
) -> GiveUp:
    """The rule for a candidate whose group starts with these predictions, of runs of 20 steps."""
    done = [measurement(each.candidate) for each in found]
    return predict.give_up(
        plan.candidate(name), plan.candidates, done, found, has_trials=has_trials
    )


def limit(plan: Plan, name: str, found: Sequence[Prediction]) -> Limit | None:
    """The limit by what was measured before."""
    return given_up(plan, name, found).outside


def test_without_trials_every_precision_is_compared() -> None:
    found = [prediction(ID, time_s=1, cost_usd=0.001)]
    rule = given_up(ANY, WIDE, found, has_trials=False)
    assert rule == GiveUp(frozenset({"fp16", "fp32"}), Limit(1 / 20, ID))


def test_with_trials_precisions_are_compared_where_one_placement_decides_on_theirs() -> None:
    """The cheapest candidate's precision is that of the trials, and of the winner."""
    both, own = frozenset({"fp16", "fp32"}), frozenset({"fp32"})
    fast, dear = prediction(ID, time_s=1, cost_usd=0.001), "L40S:1/16/fp32"
    assert given_up(ON_T4, WIDE, [fast]) == GiveUp(both, Limit(1 / 20, ID))
    # the other placement may yet have the cheapest candidate, or has it
    assert given_up(ANY, WIDE, [fast]) == GiveUp(own)
    cheapest = prediction(dear, time_s=1, cost_usd=0.0005)
    assert given_up(ANY, WIDE, [fast, cheapest]).precisions == own
    # and here it has not
    known = prediction(dear, time_s=1, cost_usd=0.002)
    assert given_up(ANY, WIDE, [fast, known]) == GiveUp(both, Limit(1 / 20, ID))


def test_another_precision_in_the_same_group_has_to_be_faster_by_far() -> None:
    group = {"fp32": Limit(1.0, "cpu:2/8/fp32"), "fp16": Limit(0.1, "cpu:2/8/fp16")}
    rule = GiveUp(frozenset({"bf16", "fp32"}))
    assert rule.limit("bf16", group) == Limit(OTHER_PRECISION, "cpu:2/8/fp32")
    assert rule.limit("fp32", group) == Limit(1.0, "cpu:2/8/fp32")
    assert rule.limit("fp32", {}) is None
    outside = replace(rule, outside=Limit(0.5, "T4:1/8/fp16"))
    assert outside.limit("bf16", group) == Limit(0.5, "T4:1/8/fp16")
    assert GiveUp(frozenset({"bf16"})).limit("bf16", group) is None


def test_a_disturbed_measurement_says_so() -> None:
    busy = speed(others_cpu_share=0.4)
    assert len(measurement(ID, speed=busy, is_steady=False).disturbances) == 2
    assert measurement(ID).disturbances == ()
    hot = measurement(ID, speed=speed(throttled_share=0.4)).disturbances
    assert hot == (
        "heat or hardware limits reduced the GPU's clock 40% of the time; see winnow doctor",
    )
    assert measurement(ID, speed=speed(throttled_share=0.01)).disturbances == ()
