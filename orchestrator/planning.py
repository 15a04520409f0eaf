"""What a run of a job would try, on nodes that are there or on nodes that a file names."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cluster import local
from cluster.inventory import Inventory, read_inventory
from cluster.prices import read_book
from jobs.spec import JobSpec
from jobs.training.model.counting import shape_of
from orchestrator import preflight
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.loading import unset_secrets


def plan_on(spec: JobSpec, nodes: Inventory) -> Plan:
    """The plan of a job on some nodes.

    Raises JobFileError where the base cannot do the task, InfeasibleError when nothing is left to
    try.
    """
    from jobs.training.data.longest_row import longest_row, longest_target  # imports pyarrow

    shape = shape_of(spec.model.base, spec.task)  # which may fetch the configuration from the hub
    preflight.check_ability(spec)
    return make_plan(spec, nodes, shape, longest_row(spec), read_book(), longest_target(spec))


def planned(
    spec: JobSpec, inventory: Inventory | None, address: str | None
) -> tuple[Plan, Inventory]:
    """What a run would try on these nodes, else on those of a running cluster; and the nodes.

    On a running cluster, which the job may be run on next, it is compared with what it needs from
    elsewhere too. Raises JobFileError with what it cannot have, DeployError where its route is
    another model's.
    """
    moves: list[str] = []
    if inventory is None:
        preflight.check(spec)
    nodes = inventory or live_inventory(address, spec, moves.append)
    found = plan_on(spec, nodes)
    return replace(found, remarks=(*found.remarks, *moves, *unset_secrets(spec))), nodes


def known_inventory(path: Path | None) -> Inventory | None:
    """Nodes from a file, else of the local cluster when it is up, else None."""
    if path:
        return read_inventory(path)
    return live_inventory(None) if local.running() else None


def live_inventory(
    address: str | None,
    spec: JobSpec | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Inventory:
    """Nodes of a running cluster, on which the route of a job is looked up too.

    Raises ClusterError when there is none, DeployError where the route is another model's.
    """
    from cluster import session

    with session.connect(address=address, start=False) as cluster:
        from cluster import discovery

        if spec and spec.serve:
            from serve.deploy import endpoints  # a second that other jobs need not pay

            endpoints.log_moved_routes(spec.name, spec.serve, cluster.serve_port, tell)
        return discovery.discover()
