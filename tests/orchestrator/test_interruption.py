"""What interrupted a command is known whatever exception it became on its way."""

from pathlib import Path

import pytest

from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator import cli, interruption
from orchestrator.cli import run as commands
from orchestrator.execution import journaled
from orchestrator.interruption import Terminated
from orchestrator.records.runs import Run
from tests.builders import job


def after(first: BaseException, error: Exception, link: str) -> Exception:
    """An error that came of another one, as Python links the two."""
    setattr(error, link, first)
    return error


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
@pytest.mark.parametrize("first", [Terminated(), KeyboardInterrupt()])
@pytest.mark.parametrize("error", [SystemError("C code"), RunError("the cluster is gone")])
def test_an_error_that_an_interruption_became_is_one(
    first: BaseException, error: Exception, link: str, tmp_path: Path
) -> None:
    found = after(first, type(error)(*error.args), link)
    assert interruption.kind_of(found) is type(first)
    assert cli._exit_code(found) == {Terminated: 143, KeyboardInterrupt: 130}[type(first)]
    run = Run("r", open_storage(tmp_path))
    with pytest.raises(type(error)), journaled(run):
        raise found
    assert [note["event"] for note in run.notes] == ["interrupted"]


def test_any_other_error_is_a_failure(tmp_path: Path) -> None:
    found = after(KeyError("x"), RunError("no data"), "__context__")
    assert interruption.kind_of(found) is None
    assert cli._exit_code(found) == 1
    run = Run("r", open_storage(tmp_path))
    with pytest.raises(RunError), journaled(run):
        raise found
    assert [(note["event"], note["error"]) for note in run.notes] == [("failed", "no data")]


@pytest.mark.parametrize("command", ["run", "sweep", "train"])
def test_an_interrupted_command_shows_the_one_that_goes_on(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Terminated

    with pytest.raises(Terminated):
        commands._call(command, interrupted, job(), Path("my jobs/a.yaml"), quiet=False)
    assert f"--resume: winnow {command} 'my jobs/a.yaml' --resume" in capsys.readouterr().err
