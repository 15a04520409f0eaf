"""The run's mean step from a probe's steps: another mix of widths, scatter, and steadiness."""

import numpy as np
import pytest

from jobs.training.step_times import StepTimes, is_steady, mean_over, student_95


def timed(widths: list[int], seconds: list[float], window: int = 4) -> StepTimes:
    """Steps in windows of one size."""
    return StepTimes(tuple(widths), tuple(seconds), (window,) * (len(widths) // window))


def test_a_probe_that_saw_short_rows_predicts_the_run_s_longer_ones() -> None:
    widths = [8, 16, 24, 8, 16, 8, 8, 16]
    times = timed(widths, [0.1 + 0.01 * width for width in widths])
    assert mean_over(times, {8: 10, 64: 30}).value == pytest.approx(0.1 + 0.01 * 50)


def test_the_mean_is_billed_so_a_stall_counts() -> None:
    calm, stalled = timed([8] * 8, [0.5] * 8), timed([8] * 8, [0.5] * 7 + [2.5])
    assert mean_over(calm, {8: 100}).value == pytest.approx(0.5)
    assert mean_over(calm, {8: 100}).half_width == 0.0
    assert mean_over(stalled, {8: 100}).value == pytest.approx(0.75)
    assert mean_over(stalled, {8: 100}).half_width > 0.25


def test_windows_that_differ_widen_the_interval_more_than_their_single_steps_do() -> None:
    slow, fast = [1.1, 1.12, 1.08, 1.1] * 10, [0.9, 0.92, 0.88, 0.9] * 10
    together = StepTimes((8,) * 80, (*slow, *fast), (40, 40))
    mixed = StepTimes(
        (8,) * 80, tuple(slow[i // 2] if i % 2 else fast[i // 2] for i in range(80)), (40, 40)
    )
    assert mean_over(together, {8: 1}).half_width > 3 * mean_over(mixed, {8: 1}).half_width


def test_intervals_hold_the_true_mean_about_as_often_as_they_say() -> None:
    draw, held = np.random.default_rng(5), 0
    for _ in range(400):
        widths = draw.integers(8, 65, size=20)
        seconds = 0.2 + 0.01 * widths + draw.normal(0, 0.05, size=20)
        mean = mean_over(timed(widths.tolist(), seconds.tolist(), 5), {40: 1})
        held += abs(mean.value - 0.6) <= mean.half_width
    assert held / 400 >= 0.93


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([0.5] * 8, True), ([0.9] * 4 + [0.5] * 4, False), ([0.5] * 4 + [0.509] * 4, True)],
)
def test_steps_are_steady_when_two_windows_agree(seconds: list[float], *, expected: bool) -> None:
    assert is_steady(timed([8] * 8, seconds)) is expected


def test_wider_rows_do_not_pass_for_slowing_down() -> None:
    widths = [8, 16, 8, 16, 32, 64, 32, 64]
    assert is_steady(timed(widths, [0.01 * width for width in widths]))


def test_one_window_says_nothing_about_steadiness() -> None:
    assert not is_steady(timed([8] * 4, [0.5] * 4))


@pytest.mark.parametrize(("freedom", "expected"), [(2, 4.303), (5, 2.571), (30, 2.042)])
def test_student_s_quantile(freedom: int, expected: float) -> None:
    assert student_95(freedom) == pytest.approx(expected, rel=0.05)
