"""Placements: one SKU, a number of workers, and the nodes that they may run on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster import catalogue
from cluster.inventory import Inventory, Node
from cluster.prices import NO_QUOTES, PriceBook
from jobs.errors import InfeasibleError
from jobs.spec.quantities import AcceleratorRequest
from jobs.training.config import Device

DEFAULT_NODE_MEMORY_GIB = 16.0
"""Assumed host memory of a node that does not report it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A SKU, a number of workers with one device each, and the nodes that they may run on."""

    sku: str
    workers: int
    node_ids: tuple[str, ...]
    """Ray ids of the nodes that have devices of the SKU; workers may start on any of them."""
    memory_gib: float
    """Memory of one device."""
    price_usd_per_hour: float | None
    """Of all workers together; None where no price is known."""
    simulated: bool = False
    spot: bool | None = None
    """True for spot nodes only, False for other nodes only, None for either."""
    worker_nodes: tuple[str, ...] = ()
    """Ray id of each worker's node, once its devices are leased."""

    @property
    def name(self) -> str:
        """`SKU:workers`, such as `L40S:2`, with a suffix if restricted to a market."""
        restriction = {None: "", True: "-spot", False: "-on-demand"}[self.spot]
        return f"{self.sku}:{self.workers}{restriction}"

    @property
    def device(self) -> Device:
        """The torch device of its workers."""
        return "cpu" if self.simulated or self.sku == catalogue.CPU else "cuda"


def place(
    request: AcceleratorRequest,
    inventory: Inventory,
    prices: Mapping[str, float],
    *,
    spot: bool | None = None,
    book: PriceBook = NO_QUOTES,
) -> Placement:
    """Find nodes for a request.

    `spot` restricts it to spot nodes (True) or on-demand nodes (False). If workers may start on
    both, the on-demand price counts. `prices` are USD per device hour by accelerator name.

    Raises:
        InfeasibleError: if the devices are too few, with the closest placement that is possible.
    """
    sku = catalogue.find(request.name)
    nodes = [node for node in inventory.with_sku(sku.name) if spot in (None, node.spot)]
    devices = sum(node.devices for node in nodes)
    if devices < request.count:
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
    """Returns the placement on the nodes that are up now, or None if they have too few devices."""
    usable = [
        node
        for node in nodes
        if node.sku == placement.sku
        and node.id not in avoid
        and placement.spot in (None, node.spot)
    ]
    if sum(node.devices for node in usable) < placement.workers:
        return None
    return replace(placement, node_ids=tuple(node.id for node in usable), worker_nodes=())


def resized(placement: Placement, workers: int) -> Placement:
    """Returns the placement with another number of workers, and its price in proportion."""
    price = placement.price_usd_per_hour
    share = workers / placement.workers
    return replace(
        placement,
        workers=workers,
        price_usd_per_hour=None if price is None else price * share,
        worker_nodes=(),
    )


def options(
    wanted: Placement, counts: Iterable[int], nodes: Sequence[Node], avoid: frozenset[str]
) -> list[Placement]:
    """Returns the placement on the nodes that are up, then those with `counts` workers.

    Nodes to avoid are used only if no placement is possible without them.
    """
    sizes = (wanted.workers, *counts)
    possible = [moved(resized(wanted, count), nodes, avoid) for count in sizes]
    return [p for p in possible if p] or [p for p in (moved(wanted, nodes),) if p]


def _closest(sku: str, count: int, inventory: Inventory) -> str:
    """Returns the same SKU with fewer workers, else the SKU nearest in memory, else what to do."""
    counts = inventory.counts()
    if counts[sku]:
        return f"closest is {sku}:{counts[sku]}"
    if not counts:
        return "start a cluster with `winnow up`, or label the nodes with known SKUs"
    wanted = catalogue.find(sku).memory_gib or 0.0
    nearest = min(counts, key=lambda name: abs((catalogue.find(name).memory_gib or 0.0) - wanted))
    return f"closest is {nearest}:{min(count, counts[nearest])}"


def _share_gib(node: Node, workers: int) -> float:
    """Returns the memory of a worker on a CPU: the workers of a node share its host memory."""
    return (node.memory_gib or DEFAULT_NODE_MEMORY_GIB) / min(workers, node.devices)
