"""`winnow up` and `winnow down`: start and stop the local cluster."""

from dataclasses import asdict
from typing import Annotated

import typer

from cluster import local
from jobs.errors import ClusterError
from jobs.spec.quantities import AcceleratorRequest, parse_accelerators
from orchestrator.cli.options import AsJson, out, print_json

Simulate = Annotated[
    str | None,
    typer.Option(metavar="SKU=COUNT,…", help="Simulated nodes, such as a100-80gb=1,l40s=2,t4=4."),
]


def up(simulate: Simulate = None, as_json: AsJson = False) -> None:
    """Start the local Ray cluster, unless it is up; --simulate adds simulated accelerators."""
    cluster, is_up = local.start(parse_simulated(simulate))
    if as_json:
        print_json({**asdict(cluster), "started": not is_up})
        return
    console = out()
    state = "is already up" if is_up else "is up"
    console.print(f"cluster {cluster.address} {state}, dashboard {cluster.dashboard_url}")
    for node in cluster.simulated:
        console.print(f"simulated node {node}: trains on the CPU, so its times mean nothing")


def down(as_json: AsJson = False) -> None:
    """Stop the local Ray cluster and its endpoints."""
    was_up = local.stop()
    if as_json:
        print_json({"stopped": was_up})
    else:
        out().print("the local cluster is down" if was_up else "no local cluster was up")


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
