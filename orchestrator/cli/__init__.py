"""The `winnow` command: its options, and what errors become: a sentence and an exit code."""

import signal
import sys
import traceback
from typing import Annotated

import typer

import raywinnow
from jobs.errors import ImportPathError, JobFileError, WinnowError
from orchestrator import interruption
from orchestrator.cli.commands import LazyCommands
from orchestrator.cli.options import out, print_error
from orchestrator.interruption import Terminated, interrupt
from raywinnow import paths

EXIT_ERROR, EXIT_JOB_FILE = 1, 2
"""Exit codes of a failed command, and of an invalid job file."""
EXIT_INTERRUPTED = {Terminated: 128 + signal.SIGTERM, KeyboardInterrupt: 128 + signal.SIGINT}
"""Exit codes after a signal, by the shell's convention."""


def _show_version(is_asked: bool) -> None:
    """Print the version of the installed distribution and exit."""
    if is_asked:
        out().print(f"winnow {raywinnow.version()}", markup=False)
        raise typer.Exit


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def options(
    is_version_asked: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """One job file from a hardware-aware sweep to a served endpoint."""


def main() -> None:
    """Run a command; prints an error in one sentence and exits with a non-zero code."""
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        _check_import_path()
        app(prog_name="winnow")
    except (Exception, KeyboardInterrupt, Terminated) as error:  # noqa: BLE001 - none reaches a user
        sys.exit(_exit_code(error))
    finally:
        signal.signal(signal.SIGTERM, previous)


def _check_import_path() -> None:
    """Raise ImportPathError with every file that Ray's workers would take for Winnow's."""
    if found := tuple(paths.shadows()):
        raise ImportPathError(found)


def _exit_code(error: BaseException) -> int:
    """Print the error, unless the user interrupted the command; returns the exit code."""
    if kind := interruption.kind_of(error):
        return EXIT_INTERRUPTED[kind]
    if isinstance(error, WinnowError):
        print_error(error)
        return EXIT_JOB_FILE if isinstance(error, JobFileError) else EXIT_ERROR
    # a bug: print a sentence and keep the traceback in a file
    from jobs.storage import files  # with the job specification, which a good command may not need

    path = files.home() / "crash.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    print_error(WinnowError(f"{type(error).__name__}: {error}; this is a bug, see {path}"))
    return EXIT_ERROR
