"""The `winnow` command: registers one command for each module, and turns errors into exit codes."""

import signal
import sys
import traceback
from typing import Annotated

import typer

import raywinnow
from jobs.errors import ImportPathError, JobFileError, WinnowError
from jobs.storage import files
from orchestrator import interruption
from orchestrator.cli import (
    accuracy,
    cluster,
    deploy,
    doctor,
    export,
    gc,
    hardware,
    init,
    load,
    manifests,
    models,
    plan,
    render,
    report,
    run,
    schema,
    serve,
    status,
    submit,
    token,
    tune_serve,
    validate,
)
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


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


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


for command in (
    init.init,
    validate.validate,
    render.render,
    schema.schema,
    plan.plan,
    run.run,
    run.sweep,
    run.train,
    deploy.deploy,
    serve.serve,
    tune_serve.tune_serve,
    load.load,
    export.export,
    status.status,
    gc.gc,
    report.report,
    accuracy.accuracy,
    hardware.hardware,
    doctor.doctor,
    cluster.up,
    cluster.down,
    submit.submit,
    manifests.manifests,
):
    app.command()(command)


app.add_typer(models.app, name="models")
app.add_typer(token.app, name="token")


def main() -> None:
    """Run a command; prints an error in one sentence and exits with a non-zero code."""
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        _check_import_path()
        app()
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
    path = files.home() / "crash.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    print_error(WinnowError(f"{type(error).__name__}: {error}; this is a bug, see {path}"))
    return EXIT_ERROR
