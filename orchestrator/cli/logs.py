"""`winnow logs`: prints the log of a run."""

import sys
import time
from typing import Annotated

import typer

from jobs.storage.storage import open_storage
from orchestrator.cli import completion
from orchestrator.cli.options import DEFAULT_STORAGE, AsJson, StorageOption, out, print_json
from orchestrator.records import following, run_log, runs
from orchestrator.records.run_log import Line

PRINTS = {"logs": list[Line]}
"""What each command prints with --json."""


def logs(
    run: Annotated[
        str,
        typer.Argument(help="Run id, as winnow ls shows it.", autocompletion=completion.run_ids),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run has ended.")
    ] = False,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Print what a run said: its notices and the events of its journal.

    With --follow, --json prints one object on each line.
    """
    reader = run_log.Reader(runs.find(open_storage(storage), run))
    if as_json and not follow:
        print_json(reader.new(), PRINTS["logs"])
        return
    _show(reader.new(), as_json=as_json)
    if not follow:
        return
    for state in following.states(reader.run):
        if state != "running":
            time.sleep(run_log.FLUSH_S)  # the last lines may be written after the end is noted
        _show(reader.new(), as_json=as_json)


def _show(lines: list[Line], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            sys.stdout.write(run_log.to_json(line) + "\n")
        else:
            out().print(f"{line.time:%Y-%m-%d %H:%M:%S} {line.stage:>8} {line.text}", markup=False)
    sys.stdout.flush()
