"""What a person sees of a run where there is no terminal."""

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


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(quiet=True) as console:
        console(Remark("not shown"))
    assert capsys.readouterr().err == ""


def test_brackets_in_texts_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        console(StageFinished("select", "full run 48.4 s [45.5 s, 51.3 s] [red]"))
    assert "[45.5 s, 51.3 s] [red]" in capsys.readouterr().err
