"""Which nodes a job needs, in the words of Ray's autoscaler. Pure."""

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
    """What one worker takes, and the labels of nodes that may hold it."""

    resources: Mapping[str, float]
    selector: Mapping[str, str]


def wanted(
    spec: JobSpec, chosen: Placement | None = None, book: PriceBook = NO_QUOTES
) -> tuple[tuple[PlacementSpec, ...], ...]:
    """Placements to be asked for together, the preferred first; serving's devices are always in.

    Placements in order are alternatives; of others the sweep compares all, until one is chosen.
    What costs more than `max_hourly_cost` on any market is not asked for.
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
    """Of an hour, on the cheaper market that it may be on; 0 where no price is known."""
    sku = catalogue.find(placement.accelerators.name)
    markets = (True, False) if placement.spot is None else (placement.spot,)
    prices = [book.price(sku, spec.hourly_prices, spot=spot) for spot in markets]
    return placement.accelerators.count * min((p for p in prices if p is not None), default=0.0)


def served(spec: JobSpec) -> tuple[PlacementSpec, ...]:
    """What one replica of the endpoint takes; nothing without an endpoint."""
    return (PlacementSpec(accelerators=spec.serve.accelerators),) if spec.serve else ()


def of(placement: Placement) -> PlacementSpec:
    """A placement as it was asked for."""
    return PlacementSpec(
        accelerators=AcceleratorRequest(placement.sku, placement.workers), spot=placement.spot
    )


def bundles(placements: Sequence[PlacementSpec]) -> tuple[Bundle, ...]:
    """One for each device; placements on the same kind of node share them."""
    most: dict[tuple[str, bool | None], int] = {}
    for placement in placements:
        key = catalogue.find(placement.accelerators.name).name, placement.spot
        most[key] = max(most.get(key, 0), placement.accelerators.count)
    found = ((_bundle(sku, _MARKETS[spot]), count) for (sku, spot), count in most.items())
    return tuple(bundle for bundle, count in found for _ in range(count))


def lacking(placements: Sequence[PlacementSpec], inventory: Inventory) -> tuple[PlacementSpec, ...]:
    """Those whose devices the cluster does not have, busy or free."""
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
