"""`winnow endpoints` and `winnow undeploy`: what a cluster serves, and the end of one endpoint."""

from dataclasses import dataclass
from typing import Annotated

import typer

from cluster import session
from jobs.errors import DeployError
from orchestrator.cli.options import (
    Address,
    AsJson,
    InsecureLocal,
    out,
    print_json,
    print_table,
    results_only,
    table,
)
from serve.deploy.served import ServedVersion


@dataclass(frozen=True, slots=True)
class Undeployed:
    """An endpoint that was taken down."""

    name: str
    """Name of the model."""
    versions: tuple[str, ...]
    """Ids of the versions that it served."""


PRINTS = {"endpoints": tuple[ServedVersion, ...], "undeploy": Undeployed}
"""What each command prints with --json."""
LEFT = ("endpoint", "version", "route", "state")


def endpoints(address: Address = None, as_json: AsJson = False) -> None:
    """List every version that a cluster serves, with its route, state and replicas."""
    found, place = served_by(address)
    if as_json:
        print_json(found, PRINTS["endpoints"])
        return
    if not found:
        out().print(f"{place} serves no endpoint", markup=False)
        return
    shown = table("endpoint", "version", "route", "requests", "state", "replicas", left=LEFT)
    for each in found:
        version, route = each.version or "–", each.route or "–"
        share, replicas = f"{each.percent}%", str(each.replicas)
        shown.add_row(each.name, version, route, share, each.state, replicas)
    print_table(shown)


def undeploy(
    name: Annotated[str, typer.Argument(help="Name of the endpoint's model.")],
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Take the endpoint of one model down; its versions stay published."""
    place = session.connect(address=address, start=False, insecure_local=insecure_local)
    with results_only(), place as cluster:
        from serve.deploy import endpoints as serving

        found = serving.every(cluster.serve_port)
        of_name = [each for each in found if each.name == name]
        if not serving.remove(name):
            known = ", ".join(sorted({each.name for each in found})) or "none"
            raise DeployError(
                f"{name} has no endpoint on {cluster.address}; those there are: {known}"
            )
    versions = [each.version for each in of_name if each.version]
    if as_json:
        print_json(Undeployed(name, tuple(versions)), PRINTS["undeploy"])
    else:
        out().print(f"the endpoint of {name} is down; its versions stay published", markup=False)


def served_by(address: str | None) -> tuple[tuple[ServedVersion, ...], str]:
    """Returns every version that a cluster serves, and the cluster's address."""
    with results_only(), session.connect(address=address, start=False) as cluster:
        from serve.deploy import endpoints as serving  # Ray reads its environment when imported

        return serving.every(cluster.serve_port), cluster.address
