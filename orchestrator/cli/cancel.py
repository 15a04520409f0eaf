"""`winnow cancel`: ends a run early, from any machine that reaches its storage."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from jobs.errors import RunError
from jobs.storage.storage import open_storage
from orchestrator.cli import completion
from orchestrator.cli.options import DEFAULT_STORAGE, AsJson, StorageOption, out, print_json
from orchestrator.records import cancellation, following, runs, summary
from orchestrator.records.owner import owner
from orchestrator.records.runs import Run
from orchestrator.records.summary import State

SAID = {
    "running": "run {} is asked to save a checkpoint and end",
    "interrupted": "run {} has ended; winnow run JOB --resume goes on with it",
    "completed": "run {} completed before it could be cancelled",
    "failed": "run {} failed before it could be cancelled",
}
"""Sentence for each state of the run at the end of the command."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A run that was asked to end."""

    run: str
    state: State
    """`running` where its end is not waited for."""


PRINTS = {"cancel": Cancelled}
"""What each command prints with --json."""


def cancel(
    run: Annotated[
        str,
        typer.Argument(help="Run id, as winnow ls shows it.", autocompletion=completion.run_ids),
    ],
    storage: StorageOption = DEFAULT_STORAGE,
    wait: Annotated[bool, typer.Option(help="Wait until the run has ended.")] = True,
    as_json: AsJson = False,
) -> None:
    """Let a run save a checkpoint and end; --resume goes on with it later."""
    found = runs.find(open_storage(storage), run)
    state = summary.present_state(found)
    if state != "running":
        raise RunError(refusal(found.id, state))
    cancellation.request(found, owner(), datetime.now(UTC))
    if wait:
        state = _await_end(found)
    if as_json:
        print_json(Cancelled(found.id, state), PRINTS["cancel"])
    else:
        out().print(SAID[state].format(found.id), markup=False)


def refusal(identity: str, state: State) -> str:
    """Returns why a run in a state other than running cannot be cancelled."""
    if state == "died":
        return (
            f"run {identity} does not run any more: its process ended without saying how;"
            " winnow run JOB --resume goes on with it"
        )
    return f"run {identity} has ended already ({state}), so there is nothing to cancel"


def _await_end(run: Run) -> State:
    """Return the state of a run once it has ended; RunError if its process has died."""
    *_, state = following.states(run)
    if state == "died":
        raise RunError(refusal(run.id, state))
    return state
