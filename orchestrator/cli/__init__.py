"""The `winnow` command: one file for each command, errors in one sentence, exit codes that tell."""

import signal
import sys
import traceback

import typer

from jobs.errors import JobFileError, WinnowError
from jobs.storage import files
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
from orchestrator.cli.options import print_error
from orchestrator.interruption import Terminated, interrupt

EXIT_ERROR, EXIT_JOB_FILE = 1, 2
"""Something failed; the job file is not usable."""

app = typer.Typer(
    help="One job file from a hardware-aware sweep to a served endpoint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
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
    """Run a command; every known failure ends in one sentence and a non-zero exit code."""
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        app()
    except JobFileError as error:
        print_error(error)
        sys.exit(EXIT_JOB_FILE)
    except WinnowError as error:
        print_error(error)
        sys.exit(EXIT_ERROR)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:  # noqa: BLE001 - a bug: the user gets a sentence, we get the trace
        if isinstance(error.__cause__, Terminated):  # it went through C code, such as Ray's
            sys.exit(128 + signal.SIGTERM)
        path = files.home() / "crash.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        print_error(WinnowError(f"{type(error).__name__}: {error}; this is a bug, see {path}"))
        sys.exit(EXIT_ERROR)
    finally:
        signal.signal(signal.SIGTERM, previous)
