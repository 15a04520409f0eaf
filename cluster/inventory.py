"""The nodes of a cluster as values, read from Ray or from a file."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from cluster import catalogue, labels
from jobs.errors import ClusterError

MIG = re.compile(r"(?<![a-z])mig(?![a-z])", re.IGNORECASE)
"""Matches the name of a GPU in MIG mode or of a MIG slice."""
MOST_IDS = 4
"""Most node ids that one message lists."""


@dataclass(frozen=True, slots=True)
class Node:
    """The devices of one SKU on one machine."""

    id: str
    sku: str
    devices: Annotated[int, Field(gt=0)]
    """Accelerators of that SKU, or cores for `cpu`."""
    memory_gib: float | None = None
    """Host memory."""
    simulated: bool = False
    """Whether the accelerators are simulated, with training on the CPU."""
    spot: bool = False
    """Whether the cloud may reclaim the machine, at a lower price."""
    labelled: bool = False
    """Whether a Ray label names the SKU, so that a label selector matches all nodes of that SKU."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every live node."""

    nodes: tuple[Node, ...]
    """Nodes with accelerators of the catalogue, under the catalogue's names."""
    unknown: tuple[Node, ...] = ()
    """Nodes with accelerators that the catalogue lacks, which are not used."""
    remarks: tuple[str, ...] = ()
    """Sentences on ambiguous accelerator names."""

    def with_sku(self, sku: str) -> tuple[Node, ...]:
        """Returns the nodes that have devices of a SKU."""
        return tuple(node for node in self.nodes if node.sku == sku)

    def counts(self) -> Counter[str]:
        """Returns the number of devices of each SKU over all nodes."""
        counts: Counter[str] = Counter()
        for node in self.nodes:
            counts[node.sku] += node.devices
        return counts

    def left_out(self) -> dict[str, str]:
        """Returns the reason why each unknown accelerator is not used, by `name:count`."""
        return {
            f"{name}:{sum(node.devices for node in nodes)}": _why_left_out(name, nodes)
            for name, nodes in _by_sku(self.unknown).items()
        }

    def __str__(self) -> str:
        simulated = {node.sku for node in self.nodes if node.simulated}
        notes = {
            **dict.fromkeys(simulated, " (simulated)"),
            **dict.fromkeys(_by_sku(self.unknown), " (not known)"),
        }
        by_sku = _by_sku((*self.nodes, *self.unknown)).items()
        counts = {sku: sum(node.devices for node in nodes) for sku, nodes in by_sku}
        shown = (f"{count} x {sku}{notes.get(sku, '')}" for sku, count in counts.items())
        return ", ".join(shown) or "no nodes"


def sort_out(nodes: Iterable[Node], remarks: Iterable[str] = ()) -> Inventory:
    """Returns an inventory, with nodes whose accelerators the catalogue lacks under `unknown`."""
    known, unknown = [], []
    for node in nodes:
        sku = catalogue.known(node.sku)
        if sku:
            known.append(replace(node, sku=sku.name))
        else:
            unknown.append(node)
    return Inventory(tuple(known), tuple(unknown), tuple(remarks))


def selector(nodes: Sequence[Node]) -> dict[str, str]:
    """Returns a Ray label selector for nodes of one SKU.

    If all nodes have the SKU label, it also matches nodes of that SKU that join later: replicas can
    then start on the replacement of a lost node, and Ray's autoscaler can start the right type.
    Otherwise it lists the ids of these nodes.
    """
    if nodes[0].sku == catalogue.CPU:
        return {labels.SIMULATED: "!true"}  # cores of simulated nodes are not offered
    if all(node.labelled for node in nodes):
        return {labels.SKU: nodes[0].sku}
    return {labels.NODE_ID: f"in({','.join(node.id for node in nodes)})"}


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file: `{"nodes": [{"id": …, "sku": "T4", "devices": 4}, …]}`.

    Raises:
        ClusterError: if the file cannot be read or is not valid.
    """
    try:
        inventory = TypeAdapter(Inventory).validate_json(path.read_bytes())
    except OSError as error:
        raise ClusterError(f"inventory {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ClusterError(f"inventory {path} is not valid at {where}: {first['msg']}") from None
    choices = (catalogue.choice(name) for name in _by_sku(inventory.nodes))
    return sort_out(inventory.nodes, (choice for choice in choices if choice))


def _by_sku(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    grouped: dict[str, list[Node]] = {}
    for node in nodes:
        grouped.setdefault(node.sku, []).append(node)
    return grouped


def _why_left_out(name: str, nodes: Sequence[Node]) -> str:
    """Returns a sentence with the accelerator, its nodes and what to do."""
    ids = ", ".join(node.id for node in nodes[:MOST_IDS])
    more = f" and {len(nodes) - MOST_IDS} more" if len(nodes) > MOST_IDS else ""
    subject = f"{name} of {'node' if len(nodes) == 1 else 'nodes'} {ids}{more} is left out"
    if MIG.search(name):
        return (
            f"{subject}, because Winnow does not use MIG slices; turn MIG off there with"
            " `nvidia-smi -mig 0`"
        )
    return (
        f"{subject}, because no accelerator of that name is known; write a name that `winnow"
        f" hardware` lists as the node's sku, or in its label {labels.SKU}"
    )
