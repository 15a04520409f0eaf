"""The nodes of a cluster as plain values, from Ray or from a file."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cluster import catalogue, labels
from jobs.errors import ClusterError

MIG = re.compile(r"(?<![a-z])mig(?![a-z])", re.IGNORECASE)
"""In the name of a GPU that is divided, or of a part of it."""
MOST_IDS = 4
"""Nodes that a sentence names."""


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
    """Those whose accelerators the catalogue knows, under its names."""
    unknown: tuple[Node, ...] = ()
    """Those whose accelerators it does not know, so that nothing is placed on them."""
    remarks: tuple[str, ...] = ()
    """Sentences on names that fit several SKUs."""

    def with_sku(self, sku: str) -> tuple[Node, ...]:
        """Nodes that have devices of a SKU."""
        return tuple(node for node in self.nodes if node.sku == sku)

    def counts(self) -> Counter[str]:
        """Devices of each SKU over all nodes."""
        counts: Counter[str] = Counter()
        for node in self.nodes:
            counts[node.sku] += node.devices
        return counts

    def left_out(self) -> dict[str, str]:
        """A sentence on each accelerator that the catalogue lacks, by its name and count."""
        return {
            f"{name}:{sum(node.devices for node in nodes)}": _why_left_out(name, nodes)
            for name, nodes in _by_sku(self.unknown).items()
        }

    def __str__(self) -> str:
        pretended = {node.sku for node in self.nodes if node.simulated}
        notes = {
            **dict.fromkeys(pretended, " (simulated)"),
            **dict.fromkeys(_by_sku(self.unknown), " (not known)"),
        }
        found = _by_sku((*self.nodes, *self.unknown)).items()
        counts = {sku: sum(node.devices for node in nodes) for sku, nodes in found}
        shown = (f"{count} x {sku}{notes.get(sku, '')}" for sku, count in counts.items())
        return ", ".join(shown) or "no nodes"


def sort_out(nodes: Iterable[Node], remarks: Iterable[str] = ()) -> Inventory:
    """The nodes under the catalogue's names, those apart whose accelerators it lacks."""
    known, unknown = [], []
    for node in nodes:
        sku = catalogue.known(node.sku)
        if sku:
            known.append(replace(node, sku=sku.name))
        else:
            unknown.append(node)
    return Inventory(tuple(known), tuple(unknown), tuple(remarks))


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
    choices = (catalogue.choice(name) for name in _by_sku(inventory.nodes))
    return sort_out(inventory.nodes, (choice for choice in choices if choice))


def _by_sku(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.sku, []).append(node)
    return found


def _why_left_out(name: str, nodes: Sequence[Node]) -> str:
    """A sentence that names the accelerator and its nodes, and says what to do."""
    ids = ", ".join(node.id for node in nodes[:MOST_IDS])
    more = f" and {len(nodes) - MOST_IDS} more" if len(nodes) > MOST_IDS else ""
    whose = f"{name} of {'node' if len(nodes) == 1 else 'nodes'} {ids}{more} is left out"
    if MIG.search(name):
        return (
            f"{whose}, because nothing is placed on a slice of MIG; turn MIG off there with"
            " `nvidia-smi -mig 0`"
        )
    return (
        f"{whose}, because no accelerator of that name is known; write a name that `winnow"
        f" hardware` lists as the node's sku, or in its label {labels.SKU}"
    )
