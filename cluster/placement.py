"""Where a run can go: one SKU, so many workers, on nodes that are there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster import catalogue
from cluster.inventory import Inventory, Node
from cluster.prices import NO_QUOTES, PriceBook
from jobs.errors import InfeasibleError
from jobs.spec.quantities import AcceleratorRequest
from jobs.training.config import Device

DEFAULT_NODE_MEMORY_GIB = 16.0
"""Memory that a node is assumed to have where it does not say."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A way to run: which SKU, how many workers with one device each, and on which nodes."""

    sku: str
    workers: int
    node_ids: tuple[str, ...]
    """Ray node ids that have devices of the SKU; workers may land on any of them."""
    memory_gib: float
    """Memory of one device."""
    price_usd_per_hour: float | None
    """Of all workers together; None where no price is known."""
    simulated: bool = False
    spot: bool | None = None
    """Whether on spot nodes alone, on none of them, or, when None, on either."""

    @property
    def name(self) -> str:
        """As users write it, such as `L40S:2`, with what it is restricted to."""
        restriction = {None: "", True: "-spot", False: "-on-demand"}[self.spot]
        return f"{self.sku}:{self.workers}{restriction}"

    @property
    def device(self) -> Device:
        """Where torch puts tensors."""
        return "cpu" if self.simulated or self.sku == catalogue.CPU else "cuda"


def place(
    request: AcceleratorRequest,
    inventory: Inventory,
    prices: Mapping[str, float],
    *,
    spot: bool | None = None,
    book: PriceBook = NO_QUOTES,
) -> Placement:
    """Find nodes for a request; InfeasibleError names what is missing and what is nearest.

    `spot` restricts it to spot nodes, or to all others. Where a worker may land on nodes of both
    kinds, the full price counts.
    """
    sku = catalogue.find(request.name)
    nodes = [node for node in inventory.with_sku(sku.name) if spot in (None, node.spot)]
    found = sum(node.devices for node in nodes)
    if found < request.count:
        kind = {None: "", True: "spot ", False: "on-demand "}[spot]
        raise InfeasibleError(
            f"no {kind}nodes for {sku.name}:{request.count}: the cluster has {inventory};"
            f" {_closest(sku.name, request.count, inventory)}"
        )
    price = book.price(sku, prices, spot=all(node.spot for node in nodes))
    return Placement(
        sku=sku.name,
        workers=request.count,
        node_ids=tuple(node.id for node in nodes),
        memory_gib=sku.memory_gib or min(_share_gib(node, request.count) for node in nodes),
        price_usd_per_hour=None if price is None else price * request.count,
        simulated=any(node.simulated for node in nodes),
        spot=spot,
    )


def moved(
    placement: Placement, nodes: Iterable[Node], avoid: frozenset[str] = frozenset()
) -> Placement | None:
    """The same placement on the nodes that are there now; None where they are too few."""
    found = [
        node
        for node in nodes
        if node.sku == placement.sku
        and node.id not in avoid
        and placement.spot in (None, node.spot)
    ]
    if sum(node.devices for node in found) < placement.workers:
        return None
    return replace(placement, node_ids=tuple(node.id for node in found))


def resized(placement: Placement, workers: int) -> Placement:
    """The same with another number of workers."""
    price = placement.price_usd_per_hour
    share = workers / placement.workers
    return replace(
        placement, workers=workers, price_usd_per_hour=None if price is None else price * share
    )


def options(
    wanted: Placement, counts: Iterable[int], nodes: Sequence[Node], avoid: frozenset[str]
) -> list[Placement]:
    """The placement on the nodes that are there, then with fewer workers, so many of `counts`.

    None of them on nodes to avoid, unless that leaves nothing.
    """
    sizes = (wanted.workers, *counts)
    found = [moved(resized(wanted, count), nodes, avoid) for count in sizes]
    return [p for p in found if p] or [p for p in (moved(wanted, nodes),) if p]


def _closest(sku: str, count: int, inventory: Inventory) -> str:
    """The same SKU with fewer workers, else the SKU nearest in memory, else what to do."""
    counts = inventory.counts()
    if counts[sku]:
        return f"closest is {sku}:{counts[sku]}"
    if not counts:
        return "start a cluster with `winnow up`, or name the nodes by SKUs that are known"
    wanted = catalogue.find(sku).memory_gib or 0.0
    nearest = min(counts, key=lambda name: abs((catalogue.find(name).memory_gib or 0.0) - wanted))
    return f"closest is {nearest}:{min(count, counts[nearest])}"


def _share_gib(node: Node, workers: int) -> float:
    """Memory of a worker on a core: cores have none of their own, workers share the node's."""
    return (node.memory_gib or DEFAULT_NODE_MEMORY_GIB) / min(workers, node.devices)
