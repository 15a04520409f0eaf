"""`winnow endpoints` and `winnow undeploy`: lists endpoints, and takes one down."""

from typing import Annotated

import typer

from cluster import session
from jobs.errors import DeployError
from orchestrator.cli.options import Address, AsJson, out, print_json, table


def endpoints(address: Address = None, as_json: AsJson = False) -> None:
    """List the endpoints of a cluster: model, versions, routes and state."""
    with session.connect(address=address, start=False) as cluster:
        from serve.deploy import endpoints as deployed

        found = deployed.every(cluster.serve_port)
    if as_json:
        print_json(found)
        return
    if not found:
        out().print("no endpoint is on the cluster; `winnow deploy job.yaml` starts one")
        return
    shown = table("model", "route", "versions", "state", left=("model", "route", "versions"))
    for each in found:
        shown.add_row(
            each.model, ", ".join(each.routes) or "–", ", ".join(each.versions), each.state
        )
    out().print(shown)


def undeploy(
    name: Annotated[str, typer.Argument(help="Name of the model, as `winnow endpoints` shows it.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Take the endpoint of one model down; its versions stay published."""
    with session.connect(address=address, start=False):
        from serve.deploy import endpoints as deployed

        if not deployed.remove(name):
            known = ", ".join(sorted(deployed.states())) or "none"
            raise DeployError(f"{name} has no endpoint on this cluster; there are: {known}")
    if as_json:
        print_json({"undeployed": name})
    else:
        out().print(f"the endpoint of {name} is down; its versions stay published", markup=False)
