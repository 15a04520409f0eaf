"""`winnow status`: shows the cluster, its endpoints, and the newest runs of a storage."""

import os
from dataclasses import dataclass

from cluster import local, session
from jobs.storage.storage import open_storage
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Address,
    AsJson,
    StorageOption,
    out,
    print_json,
    results_only,
)
from orchestrator.decisions.leases import Entry
from orchestrator.records import runs
from orchestrator.ui import standing

SHOWN_RUNS = 10


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state and finished stages of a run."""

    id: str
    state: str
    """`completed`, `failed` or `interrupted`, or `not ended`."""
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster, what runs on it, and the newest runs of a storage."""

    cluster: local.LocalCluster | None
    """None for a cluster that is not of this machine's `winnow up`."""
    ui: str | None
    """URL of the dashboard that `winnow up --ui` started, without its token."""
    devices: dict[str, int]
    """Number of devices by accelerator."""
    applications: dict[str, str]
    """State of each endpoint."""
    queue: tuple[Entry, ...]
    """Runs that hold devices or wait for them."""
    runs: tuple[RunStatus, ...]


def status(
    storage: StorageOption = DEFAULT_STORAGE, address: Address = None, as_json: AsJson = False
) -> None:
    """Show the local cluster or the one at an address, its queue and the newest runs."""
    address = address or os.environ.get("RAY_ADDRESS")
    cluster = local.at(address) if address else local.running()
    live = _live(address) if cluster or address else _Live({}, {}, ())
    newest = tuple(_run_status(run) for run in runs.every(open_storage(storage))[:SHOWN_RUNS])
    shown = standing.running()
    ui = shown.url if shown else None
    found = Status(cluster, ui, live.devices, live.applications, live.queue, newest)
    if as_json:
        print_json(found)
        return
    console = out()
    if cluster:
        simulated = f", simulated {', '.join(cluster.simulated)}" if cluster.simulated else ""
        rays = f"Ray's dashboard {cluster.dashboard_url}"
        console.print(f"cluster {cluster.address}, {rays}{simulated}")
    else:
        console.print(f"cluster {address}" if address else "no local cluster is up", markup=False)
    if ui:
        console.print(f"dashboard {ui} (winnow up --ui prints it with its token)", markup=False)
    if live.devices:
        devices = ", ".join(f"{count} x {sku}" for sku, count in live.devices.items())
        console.print(f"devices {devices}", markup=False)
    for name, state in live.applications.items():
        console.print(f"endpoint {name}: {state}")
    for entry in live.queue:
        what = f"{entry.state} {entry.devices}".rstrip()
        place = f"; {entry.place}" if entry.place else ""
        console.print(f"{entry.run} of {entry.owner}: {what}{place}", markup=False)
    for run in newest:
        console.print(
            f"run {run.id}: {run.state}; stages done: {', '.join(run.finished) or 'none'}"
        )


@dataclass(frozen=True, slots=True)
class _Live:
    """What a cluster says of itself."""

    devices: dict[str, int]
    applications: dict[str, str]
    queue: tuple[Entry, ...]


def _live(address: str | None) -> _Live:
    with results_only(), session.connect(address=address, start=False):
        from cluster import discovery  # Ray reads its environment when it is imported
        from orchestrator.stages import queue_actor
        from serve.deploy import endpoints

        devices = dict(discovery.discover().counts())
        return _Live(devices, endpoints.states(), queue_actor.entries())


def _run_status(run: runs.Run) -> RunStatus:
    notes = run.notes
    return RunStatus(run.id, runs.state_of(notes), runs.finished_stages(notes))
