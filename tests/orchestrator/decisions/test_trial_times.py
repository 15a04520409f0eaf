"""The steps of trials count as a timing of their candidate where they suffice."""

import pytest

from jobs.training.events import Evaluated, Started, Stepped
from jobs.training.probing.timing import ProbeTiming
from orchestrator.decisions.trial_times import TrialTimer, TrialTiming, is_neutral, measured_by

TIMING = ProbeTiming(
    warmup_s=1.0,
    warmup_limit_s=2.0,
    duration_s=4.0,
    limit_s=8.0,
    warmup_steps=2,
    steps=6,
    window_s=1.0,
    half_width=0.03,
)


def timed(
    seconds: list[float], widths: list[int], width: float = 24.0, beside_s: float = 0.0
) -> TrialTiming | None:
    """The timing of a trial whose steps have 8 rows and end `beside_s` after the device's time.

    After each fourth step an evaluation takes 100 s.
    """
    timer, clock_s = TrialTimer(TIMING, 8, width), 0.0
    timer.take(Started(100, 0, 800, 80, ("a",), capture_s=1.5))
    for number, (each, of) in enumerate(zip(seconds, widths, strict=True), 1):
        clock_s += each + beside_s
        timer.take(Stepped(number, 0.5, 8, 8 * of, 8 * of, each, elapsed_s=clock_s))
        if number % 4 == 0:
            clock_s += 100.0
            timer.take(Evaluated(number, {}, clock_s))
    return timer.timed()


def test_what_is_between_steps_counts_and_evaluations_do_not() -> None:
    alone, beside = timed([0.2] * 12, [24] * 12), timed([0.2] * 12, [24] * 12, beside_s=0.02)
    assert alone is not None
    assert beside is not None
    assert alone.step_s.mean == pytest.approx(0.2)
    assert beside.step_s.mean == pytest.approx(0.22)
    assert beside.seconds == pytest.approx(10 * 0.22)


def test_first_steps_are_left_out_and_the_rest_stands_for_the_full_run_s_width() -> None:
    widths = [16, 32] * 4
    steps = [0.01 * width for width in widths]
    found = timed([9.0, 9.0, *steps], [64, 64, *widths], width=40.0)
    assert found is not None
    assert found.step_s.mean == pytest.approx(0.4)
    assert (found.steps, found.capture_s) == (8, 1.5)
    assert found.seconds == pytest.approx(sum(steps))


def test_few_steps_or_an_unknown_width_time_nothing() -> None:
    assert timed([0.2] * 7, [16] * 7) is None
    assert timed([0.2] * 20, [16] * 20, width=0.0) is None
    assert timed([0.2] * 8, [16] * 8) is not None


def test_trials_are_one_measurement_whose_interval_has_all_their_means() -> None:
    several = [timed([0.2] * 14, [24] * 14), timed([0.26] * 8, [24] * 8)]
    timings = [each for each in several if each]
    found = measured_by("cpu:1/8/fp32", timings, 75, TIMING)
    assert found is None  # 2.4 and 1.56 s are shorter than a probe
    timings.append(TrialTiming(timings[0].step_s, 12, 2.4, 0.5))
    found = measured_by("cpu:1/8/fp32", timings, 75, TIMING)
    assert found is not None
    assert found.step_s is not None
    assert found.step_s.mean == pytest.approx(0.212)
    assert found.step_s.low <= 0.2 < 0.26 <= found.step_s.high
    assert (found.steps, found.captured_s, found.overheads) == (75, 0.5, None)


@pytest.mark.parametrize(
    ("name", "neutral"),
    [
        ("train.optimizer.lr", True),
        ("train.lr_schedule.warmup", True),
        ("train.optimizer.weight_decay", True),
        ("seed", True),
        ("train.optimizer.type", False),
        ("train.global_batch_size", False),
        ("model.adapter.r", False),
    ],
)
def test_only_fields_that_change_no_step_s_duration_are_compared(
    name: str, *, neutral: bool
) -> None:
    assert is_neutral(["train.optimizer.lr", name]) is neutral
