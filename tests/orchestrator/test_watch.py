"""A fit while it runs: what it looks like in all, and when that is worth a warning."""

import pytest

from jobs.training.events import Evaluated, Started, Stepped
from orchestrator.decisions.measurement import Phases
from orchestrator.notices import Notice, Progress, Remark
from orchestrator.watch import FitWatch
from tests.builders import prediction

STEPS = 100


def watched(step_s: float, first: int = 0) -> tuple[FitWatch, list[str]]:
    """A fit predicted to take 110 s: 5 to start, 100 steps of a second, 5 to judge."""
    now, remarks = [0.0], list[str]()

    def notify(notice: Notice) -> None:
        if isinstance(notice, Remark):
            remarks.append(notice.text)

    phases = Phases(5.0, 0.0, 100.0, 5.0, 0.0, 0.0)
    expected = prediction("T4:1/16/fp16", time_s=110.0, cost_usd=None)
    expected = type(expected)(expected.candidate, STEPS, expected.time_s, None, phases)
    watch = FitWatch(notify, None, expected, lambda: now[0])
    now[0] = 5.0
    watch.show(Started(STEPS, first, 320, 100, ("a", "b")))
    for step in range(first + 1, STEPS + 1):
        now[0] += step_s
        watch.show(Stepped(step, 0.5, 16, 160, 200, step_s, step * step_s))
    return watch, remarks


def test_the_whole_time_is_looked_at_again_at_three_shares() -> None:
    watch, remarks = watched(1.0)
    assert [found.share for found in watch.projections] == [0.05, 0.25, 0.5]
    times = [found.time_s for found in watch.projections]
    assert times == pytest.approx([5 + 100 + 5 * left for left in (0.95, 0.75, 0.5)])
    assert not any("projected total time" in text for text in remarks)


def test_a_fit_that_is_much_slower_is_told_early() -> None:
    watch, remarks = watched(1.5)
    warned = [text for text in remarks if "projected total time" in text]
    assert len(warned) == 3
    assert "5% done: projected total time 2.7 min, +45%" in warned[0]
    assert watch.projections[0].time_s == pytest.approx(5 + 150 + 5 * 0.95)


def test_values_of_any_size_are_told_in_few_characters() -> None:
    told: list[str] = []

    def notify(notice: Notice) -> None:
        if isinstance(notice, Remark | Progress):
            told.append(notice.text)

    watch = FitWatch(notify, None, None, lambda: 0.0)
    watch.show(Stepped(1, 1e300, 16, 160, 200, 1.0, 1.0))
    watch.show(Evaluated(1, {"perplexity": 1e304, "token_accuracy": 0.25}, 1.0))
    assert told[0].startswith("loss 1.000e+300, 16 samples/s")
    assert told[1] == "step 1: perplexity 1.000e+304, token_accuracy 0.2500"


def test_a_resumed_fit_is_not_projected() -> None:
    assert watched(1.5, first=50)[0].projections == []


def test_gauges_are_published_once_a_second_and_at_the_end() -> None:
    now, steps = [0.0], list[float]()
    watch = FitWatch(
        lambda _: None, None, None, lambda: now[0], lambda values: steps.append(values["step"])
    )
    watch.show(Started(30, 0, 320, 100, ("a", "b")))
    for step in range(1, 31):
        watch.show(Stepped(step, 0.5, 16, 160, 200, 0.1, 0.1 * step))
        now[0] += 0.125
    assert steps == [1, 9, 17, 25, 30]
