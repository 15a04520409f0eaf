"""What a cluster does at one moment, as the dashboard shows it."""

from dataclasses import dataclass
from datetime import datetime

from cluster.exporter import NodeUse
from orchestrator.decisions.leases import Entry
from serve.deploy.figures import RolloutState, VersionFigures


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, the devices that are taken on it, and what they do."""

    id: str
    host: str
    devices: str
    """Its accelerators, such as `2 x L40S`, else its cores."""
    is_simulated: bool
    kind: str
    """What is counted on this node: its GPUs, or its CPUs if it has no GPU."""
    taken: float
    """Devices of that kind that runs and endpoints have, as Ray counts them."""
    total: float
    use: NodeUse | None
    """None if the node's exporter does not answer."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster at one moment."""

    time: datetime
    endpoints: tuple[VersionFigures, ...]
    rollouts: tuple[RolloutState, ...]
    queue: tuple[Entry, ...]
    nodes: tuple[NodeState, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the process that observes a cluster says: the cluster, or why it ends."""

    found: Cluster | None = None
    error: str = ""
