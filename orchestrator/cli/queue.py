"""`winnow queue`: lists the runs of a cluster that hold devices or wait for them."""

from datetime import UTC, datetime

from cluster import session
from orchestrator.cli.ls import show_age
from orchestrator.cli.options import (
    Address,
    AsJson,
    out,
    print_json,
    print_table,
    results_only,
    table,
)
from orchestrator.decisions.leases import Entry

PRINTS = {"queue": tuple[Entry, ...]}
"""What each command prints with --json."""
LEFT = ("run", "owner", "state", "devices", "why")


def queue(address: Address = None, as_json: AsJson = False) -> None:
    """List the runs that hold devices of a cluster or wait for them, the next one first."""
    with results_only(), session.connect(address=address, start=False) as cluster:
        from orchestrator.stages import queue_actor  # Ray reads its environment when imported

        found, place = queue_actor.entries(), cluster.address
    if as_json:
        print_json(found, PRINTS["queue"])
        return
    if not found:
        out().print(f"no run is on {place}", markup=False)
        return
    shown = table("run", "owner", "priority", "state", "devices", "since", "why", left=LEFT)
    now = datetime.now(UTC)
    for each in found:
        shown.add_row(*_cells(each, now))
    print_table(shown)


def _cells(entry: Entry, now: datetime) -> tuple[str, ...]:
    since = show_age(now - datetime.fromtimestamp(entry.since, UTC))
    why = str(entry.place or "–")
    state = entry.state
    return entry.run, entry.owner, str(entry.priority), state, entry.devices or "–", since, why
