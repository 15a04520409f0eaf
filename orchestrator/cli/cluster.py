"""`winnow up` and `winnow down`: start and stop the local cluster."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cluster import local
from jobs.errors import ClusterError
from jobs.spec.quantities import AcceleratorRequest, parse_accelerators
from jobs.storage.storage import open_storage
from orchestrator.cli.options import DEFAULT_STORAGE, AsJson, StorageOption, out, print_json
from orchestrator.ui import standing

Simulate = Annotated[
    str | None,
    typer.Option(metavar="SKU=COUNT,…", help="Simulated nodes, such as a100-80gb=1,l40s=2,t4=4."),
]

Tokens = Annotated[
    Path | None,
    typer.Option(help="With --ui: file of winnow token add NAME --scope read|operate."),
]


def up(
    simulate: Simulate = None,
    has_ui: Annotated[
        bool, typer.Option("--ui", help="Start the dashboard of winnow ui too, on 127.0.0.1.")
    ] = False,
    storage: StorageOption = DEFAULT_STORAGE,
    tokens: Tokens = None,
    as_json: AsJson = False,
) -> None:
    """Start the local Ray cluster, unless it is up; --simulate adds simulated accelerators.

    --ui starts the dashboard of --storage beside it, which `winnow down` ends.
    """
    if tokens and not has_ui:
        raise ClusterError("--tokens is for the dashboard; add --ui")
    place = open_storage(storage) if has_ui else None
    # the dashboard is for the cluster that is up, whatever its nodes
    nodes = parse_simulated(simulate) if simulate or not has_ui else None
    cluster, is_up = local.start(nodes)
    shown = standing.start(place.url, tokens) if place else None
    if as_json:
        ui = {"ui": shown.link} if shown else {}
        print_json({**asdict(cluster), "started": not is_up, **ui})
        return
    console = out()
    state = "is already up" if is_up else "is up"
    console.print(f"cluster {cluster.address} {state}, Ray's dashboard {cluster.dashboard_url}")
    for node in cluster.simulated:
        console.print(f"simulated node {node}: trains on the CPU, so its times mean nothing")
    if shown:
        console.print(f"the dashboard of {place} answers at {shown.link}", markup=False)


def down(as_json: AsJson = False) -> None:
    """Stop the local Ray cluster with its endpoints, and the dashboard beside it."""
    had_ui = standing.stop()
    was_up = local.stop()
    if as_json:
        print_json({"stopped": was_up, "ui_stopped": had_ui})
        return
    out().print("the local cluster is down" if was_up else "no local cluster was up")
    if had_ui:
        out().print("the dashboard is down")


def parse_simulated(text: str | None) -> list[AcceleratorRequest]:
    """Parse the --simulate option.

    Raises:
        ClusterError: if it is not valid.
    """
    try:
        return [
            parse_accelerators(part.replace("=", ":")) for part in (text or "").split(",") if part
        ]
    except ValueError as error:
        raise ClusterError(f"--simulate: {error}") from None
