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
)
from orchestrator.records import runs

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
    """The cluster, the state of its applications, and the newest runs."""

    cluster: local.LocalCluster | None
    applications: dict[str, str]
    runs: tuple[RunStatus, ...]


def status(
    storage: StorageOption = DEFAULT_STORAGE, address: Address = None, as_json: AsJson = False
) -> None:
    """Show the local cluster or the one at an address, its endpoints and the newest runs."""
    address = address or os.environ.get("RAY_ADDRESS")
    cluster = local.at(address) if address else local.running()
    applications = _applications(address) if cluster or address else {}
    newest = tuple(_run_status(run) for run in runs.every(open_storage(storage))[:SHOWN_RUNS])
    found = Status(cluster, applications, newest)
    if as_json:
        print_json(found)
        return
    console = out()
    if cluster:
        simulated = f", simulated {', '.join(cluster.simulated)}" if cluster.simulated else ""
        console.print(f"cluster {cluster.address}, dashboard {cluster.dashboard_url}{simulated}")
    else:
        console.print(f"cluster {address}" if address else "no local cluster is up", markup=False)
    for name, state in applications.items():
        console.print(f"endpoint {name}: {state}")
    for run in newest:
        console.print(
            f"run {run.id}: {run.state}; stages done: {', '.join(run.finished) or 'none'}"
        )


def _applications(address: str | None) -> dict[str, str]:
    with session.connect(address=address, start=False):
        from serve.deploy import endpoints

        return endpoints.states()


def _run_status(run: runs.Run) -> RunStatus:
    notes = run.notes
    return RunStatus(run.id, runs.state_of(notes), runs.finished_stages(notes))
