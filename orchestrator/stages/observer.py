"""Observes a cluster: what it serves, who has its devices, and what these do.

Replicas are not asked. Their figures are read at HAProxy and at the exporters of Ray's nodes, to
which replicas publish them anyway.
"""

import collections
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import ray

from cluster import catalogue, discovery, exporter, labels
from cluster.exporter import Series
from cluster.inventory import Inventory
from orchestrator.decisions.leases import Resource, World
from orchestrator.decisions.observed import Cluster, NodeState
from orchestrator.stages import queue_actor
from serve.deploy import endpoints, figures
from serve.deploy.figures import Reading
from serve.deploy.rollout import Counts

PERIOD_S = 60.0
"""Length of the period that figures are of."""


class Observer:
    """Keeps the readings of the last PERIOD_S seconds, and whose SKU each node has."""

    def __init__(self, serve_port: int) -> None:
        self._port = serve_port
        self._readings: collections.deque[Reading] = collections.deque()
        self._inventory, self._known = Inventory(()), frozenset[str]()
        self._series: dict[str, tuple[Series, ...]] = {}
        """The last answer of each node's exporter, so that one that fails once resets no count."""

    def observe(self) -> Cluster:
        """Returns the cluster as it is now.

        Raises:
            ClusterError: if the queue or a node does not answer.
            DeployError: if HAProxy does not answer.
        """
        alive = [node for node in ray.nodes() if node["Alive"]]
        if (ids := frozenset(node["NodeID"] for node in alive)) != self._known:
            self._inventory, self._known = discovery.discover(), ids
        fresh = self._scrape(alive)
        serving = endpoints.observe(self._port)
        self._remember(serving.counts)
        world = queue_actor.world()
        return Cluster(
            time=datetime.now(UTC),
            endpoints=figures.figures(serving.versions, self._readings),
            rollouts=figures.rollouts(serving.routes),
            queue=queue_actor.entries(),
            nodes=tuple(self._node(node, world, fresh.get(node["NodeID"])) for node in alive),
        )

    def _scrape(self, alive: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Series, ...]]:
        """Returns the series of the nodes whose exporter answers, by node."""
        addresses = [_address(node) for node in alive]
        found = exporter.scrape(addresses, (*exporter.OF_NODES, *figures.SERIES))
        by_node = zip([node["NodeID"] for node in alive], found, strict=True)
        fresh = {node: series for node, series in by_node if series is not None}
        known = {node: each for node, each in self._series.items() if node in self._known}
        self._series = {**known, **fresh}
        return fresh

    def _remember(self, counts: Mapping[str, Counts]) -> None:
        rows: dict[str, list[tuple[Mapping[str, str], float]]] = {n: [] for n in figures.SERIES}
        for each in (each for series in self._series.values() for each in series):
            if each.name in rows:
                rows[each.name].append((each.labels, each.value))
        counts = {**figures.counts(rows[figures.REQUESTS]), **counts}
        now = time.monotonic()
        self._readings.append(Reading(now, counts, figures.histograms(rows[figures.LATENCY])))
        while now - self._readings[0].at > PERIOD_S and len(self._readings) > 2:
            self._readings.popleft()

    def _node(
        self, node: Mapping[str, Any], world: World, series: tuple[Series, ...] | None
    ) -> NodeState:
        identity, resources = node["NodeID"], node["Resources"]
        kind: Resource = "GPU" if resources.get("GPU") else "CPU"
        slot = world.slots.get((identity, kind))
        every = (*self._inventory.nodes, *self._inventory.unknown)
        of_node = [each for each in every if each.id == identity]
        shown = [e for e in of_node if kind == "CPU" or e.sku != catalogue.CPU]
        return NodeState(
            id=identity,
            host=node["NodeManagerHostname"],
            devices=", ".join(f"{each.devices} x {each.sku}" for each in shown),
            is_simulated=node["Labels"].get(labels.SIMULATED) == "true",
            kind=kind,
            taken=slot.used if slot else 0.0,
            total=slot.total if slot else 0.0,
            use=exporter.use_of(series) if series is not None else None,
        )


def _address(node: Mapping[str, Any]) -> str:
    host = node["NodeManagerAddress"]
    return f"{f'[{host}]' if ':' in host else host}:{node['MetricsExportPort']}"
