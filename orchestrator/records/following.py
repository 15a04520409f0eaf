"""Follows a run, from any machine, until it has ended."""

import time
from collections.abc import Iterator

from jobs.errors import RunError
from orchestrator.records import lease, summary
from orchestrator.records.runs import Run
from orchestrator.records.summary import State

LOOK_S = 1.0
"""How often the run's files are read."""


def states(run: Run, look_s: float = LOOK_S, stale_s: float = lease.STALE_S) -> Iterator[State]:
    """Yield the state of a run again and again; the last state is that of its end.

    Raises:
        RunError: if the process of the run has not renewed its lease for `stale_s` seconds.
    """
    beat, renewed = None, time.monotonic()
    while True:
        notes = run.notes
        holder = summary.holder_of(run, notes)
        state = summary.state_of(notes, holder)
        yield state
        if state != "running":
            return
        if holder and holder.beat != beat:
            beat, renewed = holder.beat, time.monotonic()
        if time.monotonic() - renewed > stale_s:
            raise RunError(
                f"the process of run {run.id} has not renewed its lease for {stale_s:.0f} s, so it"
                " has died; winnow run JOB --resume goes on with the run"
            )
        time.sleep(look_s)
