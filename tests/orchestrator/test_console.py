"""What a person sees of a run where there is no terminal."""

import re

import pytest

from orchestrator.console import Console
from orchestrator.notices import Progress, Remark, StageFinished, StageStarted


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_stages_and_remarks_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        console(StageStarted("probe", "4 candidates"))
        console(StageFinished("probe", "done"))
        console(Remark("something to know"))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == ["probe 4 candidates …", "probe ✓ done", "something to know"]


def test_frequent_progress_is_thinned_but_its_end_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Console(clock=clock) as console:
        for step in range(1, 101):
            clock.now += 0.1
            console(Progress("fit", step, 100, "loss 0.5"))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == "fit 1/100 loss 0.5"
    assert lines[-1] == "fit 100/100 loss 0.5"
    assert len(lines) == 3


def test_results_are_never_thinned(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Console(clock=clock) as console:
        for n in (1, 2, 3, 4):
            console(Progress("probe", n, 9, f"candidate {n}", is_result=True))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == [f"probe {n}/9 candidate {n}" for n in (1, 2, 3, 4)]


def test_a_terminal_has_a_bar_while_a_stage_is_waited_for_and_keeps_results_above_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, a terminal
    monkeypatch.setenv("COLUMNS", "120")
    with Console() as console:

        def shown() -> list[str]:
            """Lines above the bars, and those of the bars."""
            console._bars.refresh()
            text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
            return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]

        console(StageStarted("plan", "checking data"))
        assert any("0:00:00" in line and "checking data" in line for line in shown())
        console(StageStarted("probe", "2 candidates"))
        assert not any("checking data" in line for line in shown()[-1:])
        console(Progress("probe", 1, 2, "T4:1/8/fp16: 0.5 s a step", is_result=True))
        lines = shown()
        assert "probe 1/2 T4:1/8/fp16: 0.5 s a step" in lines
        assert "1/2" in lines[-1]
        assert "0.5 s a step" not in lines[-1]
        console(Progress("fit", 3, 9, "loss 0.5"))
        lines = shown()
        assert "3/9" in lines[-1]
        assert "loss 0.5" in lines[-1]
        console(StageFinished("fit", "done"))
        assert not console._bars.tasks
        console(StageStarted("trials", "2 trials"))
        console(Progress("probe", 1, 2))
        assert [task.description for task in console._bars.tasks] == ["trials", "probe"]
        console(Progress("probe", 2, 2))
        assert [task.description for task in console._bars.tasks] == ["trials"]


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(quiet=True) as console:
        console(Remark("not shown"))
    assert capsys.readouterr().err == ""


def test_brackets_in_texts_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        console(StageFinished("select", "full run 48.4 s [45.5 s, 51.3 s] [red]"))
    assert "[45.5 s, 51.3 s] [red]" in capsys.readouterr().err
