"""The nodes of a cluster as plain values, from Ray or from a file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cluster import catalogue, labels
from jobs.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Node:
    """One machine."""

    id: str
    sku: str
    devices: int
    """Accelerators of that SKU, or cores for `cpu`."""
    memory_gib: float | None = None
    """Host memory."""
    simulated: bool = False
    """Whether the accelerators are only pretended, with training on the CPU."""
    spot: bool = False
    """Whether the machine may be taken away, at a lower price."""
    labelled: bool = False
    """Whether a label names the SKU, so that Ray finds the node by it, and any like it."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every node that is alive."""

    nodes: tuple[Node, ...]

    def with_sku(self, sku: str) -> tuple[Node, ...]:
        """Nodes that have devices of a SKU."""
        return tuple(node for node in self.nodes if node.sku == sku)

    def counts(self) -> Counter[str]:
        """Devices of each SKU over all nodes."""
        counts: Counter[str] = Counter()
        for node in self.nodes:
            counts[node.sku] += node.devices
        return counts

    def __str__(self) -> str:
        pretended = {node.sku for node in self.nodes if node.simulated}
        return (
            ", ".join(
                f"{count} x {sku}" + (" (simulated)" if sku in pretended else "")
                for sku, count in self.counts().items()
            )
            or "no nodes"
        )


def selector(nodes: Sequence[Node]) -> dict[str, str]:
    """Labels of these nodes, and where labels tell, of their like that come later.

    So replicas may start on a node that takes a lost one's place, and Ray's autoscaler knows which
    node is wanted.
    """
    if nodes[0].sku == catalogue.CPU:
        return {labels.SIMULATED: "!true"}  # a pretended accelerator's cores are not offered
    if all(node.labelled for node in nodes):
        return {labels.SKU: nodes[0].sku}
    return {labels.NODE_ID: f"in({','.join(node.id for node in nodes)})"}


INVENTORY = TypeAdapter(Inventory)
"""Reads and writes an Inventory as JSON."""


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file: `{"nodes": [{"id": …, "sku": "T4", "devices": 4}, …]}`."""
    try:
        inventory = INVENTORY.validate_json(path.read_bytes())
    except OSError as error:
        raise ClusterError(f"inventory {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClusterError(f"inventory {path} is not valid at {where}: {first['msg']}") from None
    known = tuple(replace(node, sku=catalogue.find(node.sku).name) for node in inventory.nodes)
    return Inventory(known)
