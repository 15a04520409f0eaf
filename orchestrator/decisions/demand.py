"""Derives the resource requests of a job for Ray's autoscaler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster import catalogue, labels
from cluster.inventory import Inventory
from cluster.placement import Placement
from cluster.prices import NO_QUOTES, PriceBook
from jobs.spec import JobSpec
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.resources import PlacementSpec


@dataclass(frozen=True, slots=True)
class Bundle:
    """The resources of one worker, and a label selector of the nodes that may run it."""

    resources: Mapping[str, float]
    selector: Mapping[str, str]


def wanted(
    spec: JobSpec, chosen: Placement | None = None, book: PriceBook = NO_QUOTES
) -> tuple[tuple[PlacementSpec, ...], ...]:
    """Returns groups of placements to request together, the preferred group first.

    Ordered placements are alternatives, each in its own group. Unordered placements are in one
    group, because the sweep compares them; once one is `chosen`, only it is requested. Each group
    has the endpoint's devices. Placements above `max_hourly_cost` on every market are left out.
    """
    resources = spec.resources
    if chosen is not None:
        return ((of(chosen), *served(spec)),)
    if resources is None:
        return (served(spec),)
    if resources.ordered:
        affordable = _affordable(spec, resources.ordered, book)
        return tuple((placement, *served(spec)) for placement in affordable)
    return ((*_affordable(spec, resources.any_of, book), *served(spec)),)


def _affordable(
    spec: JobSpec, placements: Sequence[PlacementSpec], book: PriceBook
) -> list[PlacementSpec]:
    limit = spec.resources.max_hourly_cost if spec.resources else None
    if limit is None:
        return list(placements)
    return [p for p in placements if _least_usd(spec, p, book) <= limit]


def _least_usd(spec: JobSpec, placement: PlacementSpec, book: PriceBook) -> float:
    """Returns the USD per hour on the cheaper permitted market; 0 where no price is known."""
    sku = catalogue.find(placement.accelerators.name)
    markets = (True, False) if placement.spot is None else (placement.spot,)
    prices = [book.price(sku, spec.hourly_prices, spot=spot) for spot in markets]
    return placement.accelerators.count * min((p for p in prices if p is not None), default=0.0)


def served(spec: JobSpec) -> tuple[PlacementSpec, ...]:
    """Returns the placement of one replica of the endpoint; empty without an endpoint."""
    return (PlacementSpec(accelerators=spec.serve.accelerators),) if spec.serve else ()


def of(placement: Placement) -> PlacementSpec:
    """Returns the placement as a job file writes it."""
    return PlacementSpec(
        accelerators=AcceleratorRequest(placement.sku, placement.workers), spot=placement.spot
    )


def bundles(placements: Sequence[PlacementSpec]) -> tuple[Bundle, ...]:
    """Returns one bundle for each device; placements on the same kind of node share bundles."""
    most: dict[tuple[str, bool | None], int] = {}
    for placement in placements:
        key = catalogue.find(placement.accelerators.name).name, placement.spot
        most[key] = max(most.get(key, 0), placement.accelerators.count)
    found = ((_bundle(sku, _MARKETS[spot]), count) for (sku, spot), count in most.items())
    return tuple(bundle for bundle, count in found for _ in range(count))


def lacking(placements: Sequence[PlacementSpec], inventory: Inventory) -> tuple[PlacementSpec, ...]:
    """Returns the placements with more devices than the cluster has, busy or free."""
    return tuple(
        placement
        for placement in placements
        if _devices(placement, inventory) < placement.accelerators.count
    )


def _devices(placement: PlacementSpec, inventory: Inventory) -> int:
    nodes = inventory.with_sku(catalogue.find(placement.accelerators.name).name)
    return sum(node.devices for node in nodes if placement.spot in (None, node.spot))


_MARKETS: Mapping[bool | None, Mapping[str, str]] = {
    None: {},
    True: {labels.MARKET: "spot"},
    False: {labels.MARKET: "!spot"},
}


def _bundle(sku: str, market: Mapping[str, str]) -> Bundle:
    if sku == catalogue.CPU:
        return Bundle({"CPU": 1}, market)
    return Bundle({"CPU": 1, "GPU": 1}, {labels.SKU: sku, **market})
