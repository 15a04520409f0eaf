"""`winnow watch`: shows a run as `winnow run` does, from any machine that reaches its storage."""

import sys
import time
from typing import Annotated

import typer

from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator.cli import completion
from orchestrator.cli.options import DEFAULT_STORAGE, AsJson, StorageOption, out
from orchestrator.console import Console
from orchestrator.records import following, run_log, runs
from orchestrator.records.run_log import Line

PRINTS = {"watch": Line}
"""What each command prints with --json, on each line."""


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Run id, as winnow ls shows it; the newest run by default.",
            autocompletion=completion.run_ids,
        ),
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show a run as winnow run does, until it ends; the exit code is 0 if it completes.

    With --json, one object is printed on each line.
    """
    found = runs.find(open_storage(storage), run)
    reader = run_log.Reader(found)
    with Console(quiet=as_json) as console:
        for state in following.states(found):
            if state != "running":
                time.sleep(run_log.FLUSH_S)  # the last lines may be written after the end is noted
            for line in reader.new():
                console(run_log.notice_of(line))
                if as_json:
                    sys.stdout.write(run_log.to_json(line) + "\n")
            sys.stdout.flush()
    if state != "completed":
        raise RunError(
            f"run {found.id} has ended: {state}; winnow run JOB --resume goes on with it"
        )
    if not as_json:
        out().print(f"run {found.id} has completed; its files are in {found.url}", markup=False)
