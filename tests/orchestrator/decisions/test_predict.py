"""From probed steps to the time and cost of the full run, and to giving up what is worse."""

from dataclasses import replace

import pytest

from jobs.training.events import OutOfMemory, Probed
from jobs.training.step_times import StepTimes
from orchestrator.decisions import predict
from orchestrator.decisions.measurement import Interval, Launch, Measurement, Prediction, summarise
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
    assert phases.checkpoints == 0.75
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
    slow = overheads(save_s=0.5, final_save_s=4.5)  # 4 s to write, every 2.5 s of steps

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
    known = {candidate.id: candidate for candidate in PLAN.candidates}
    found = [prediction(ID, time_s=100, cost_usd=0.1)]
    on_l40s, on_t4 = PLAN.candidate("L40S:1/16/fp16"), PLAN.candidate("T4:1/32/fp16")
    assert predict.give_up_s(on_t4, 20, known, found) == pytest.approx(100 / 20)
    assert predict.give_up_s(on_l40s, 20, known, found) == pytest.approx(100 / 20)
    dear = [prediction("L40S:1/16/fp16", time_s=60, cost_usd=0.12)]
    assert predict.give_up_s(on_t4, 20, known, dear) == pytest.approx(120 / 20)


def test_nothing_is_given_up_for_another_precision_or_before_anything_is_known() -> None:
    spec = job(
        train__micro_batch_size=16,
        resources__any_of=any_of("T4:1"),
        sweep=sweep({"train.precision": ["fp16", "fp32"]}),
    )
    plan = plan_of(spec, inventory(T4=1))
    known = {candidate.id: candidate for candidate in plan.candidates}
    found = [prediction(ID, time_s=1, cost_usd=0.001)]
    slow = plan.candidate("T4:1/16/fp32")
    assert predict.give_up_s(slow, 20, known, found) is None
    assert predict.give_up_s(slow, 20, known, []) is None


def test_a_disturbed_measurement_says_so() -> None:
    busy = speed(others_cpu_share=0.4)
    assert len(measurement(ID, speed=busy, is_steady=False).disturbances) == 2
    assert measurement(ID).disturbances == ()
    hot = measurement(ID, speed=speed(throttled_share=0.4)).disturbances
    assert hot == (
        "heat or hardware limits reduced the GPU's clock 40% of the time; see winnow doctor",
    )
    assert measurement(ID, speed=speed(throttled_share=0.01)).disturbances == ()
