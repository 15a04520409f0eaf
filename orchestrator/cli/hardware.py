"""`winnow hardware`: lists known accelerators, prices and live nodes, and measures devices."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cluster import catalogue, local, prices, session
from cluster.inventory import Inventory
from cluster.prices import PriceBook
from jobs.errors import ClusterError
from jobs.training.events import HardwareMeasured
from orchestrator.cli.options import (
    Address,
    AsJson,
    InsecureLocal,
    InventoryFile,
    out,
    print_json,
    table,
)
from orchestrator.planning import known_inventory, live_inventory

Probe = Annotated[
    bool, typer.Option("--probe", help="Measure each kind of device here for about a minute.")
]
Refresh = Annotated[
    bool, typer.Option("--refresh-prices", help="Fetch today's prices from AWS and keep them.")
]
Region = Annotated[
    str | None, typer.Option(help="AWS region of the prices; by default that of your profile.")
]


def hardware(
    inventory: InventoryFile = None,
    address: Address = None,
    probe: Probe = False,
    refresh_prices: Refresh = False,
    region: Region = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """List every known accelerator with memory, precisions and price, and the live nodes."""
    if probe:
        if inventory is not None:
            raise ClusterError("--probe measures live nodes; leave --inventory out")
        show_measured(address, insecure_local=insecure_local, as_json=as_json)
        return
    failure = refresh(region) if refresh_prices else None
    nodes = live_inventory(address) if address else known_inventory(inventory)
    skus, book = list(catalogue.catalogue().values()), prices.read_book()
    if as_json and failure is None:
        fetched = list(book.quotes.values())
        print_json(
            {
                "accelerators": skus,
                "fetched": fetched,
                "nodes": (*nodes.nodes, *nodes.unknown) if nodes else None,
            }
        )
    elif not as_json:
        show_catalogue(skus, nodes, book)
        if nodes is None and local.running() is None:
            out().print("\nno cluster is up; `winnow up` starts one")
    if failure:
        raise failure


def refresh(region: str | None) -> ClusterError | None:
    """Fetch prices and store them; returns the error if that fails, with the old prices kept."""
    from cluster import aws

    try:
        prices.write_book(aws.fetch(region))
    except ClusterError as error:
        return error
    return None


def show_catalogue(skus: list[catalogue.Sku], nodes: Inventory | None, book: PriceBook) -> None:
    """Print the catalogue with the number of live devices and the price of an hour."""
    counts = nodes.counts() if nodes else {}
    names = ("accelerator", "here", "memory GiB", "GB/s", "link GB/s", "tensor TFLOPS")
    costs = ("USD/h", "spot USD/h") if book.quotes else ("USD/h",)
    shown = table(*names, *costs, "precisions", left=("accelerator", "precisions"))
    for sku in skus:
        quote = book.quotes.get(sku.name)
        numbers = (
            sku.memory_gib,
            sku.bandwidth_gb_per_s,
            sku.interconnect_gb_per_s,
            sku.tensor_tflops,
            book.price(sku, {}, spot=False),
            *([quote.spot_usd if quote else None] if book.quotes else []),
        )
        cells = ("–" if number is None else f"{number:g}" for number in numbers)
        here = str(counts.get(sku.name, "")) if nodes else ""
        shown.add_row(sku.name, here, *cells, ", ".join(sku.precisions))
    out().print(shown)
    for reason in (nodes.left_out() if nodes else {}).values():
        out().print(f"\n{reason}", markup=False)
    if book.quotes:
        newest = max(quote.date for quote in book.quotes.values())
        out().print(f"\nprices of {len(book.quotes)} accelerators were fetched on {newest}")


def show_measured(address: str | None, *, insecure_local: bool, as_json: bool) -> None:
    """Measure the live devices and print the rates as a share of the catalogue's."""
    found: dict[str, HardwareMeasured] = {}
    columns = ("accelerator", "measured", "rate", "of the catalogue's")
    shown = table(*columns, left=("accelerator", "measured"))
    with (
        session.connect(address=address, insecure_local=insecure_local),
        tempfile.TemporaryDirectory() as folder,
    ):
        from cluster import discovery
        from orchestrator.stages import hardware

        for placement, measured in hardware.measure_each(discovery.discover(), Path(folder)):
            found[placement.name] = measured
            for row in measured_rows(placement.sku, measured):
                shown.add_row(placement.name, *row)
    if as_json:
        print_json({name: dataclasses.asdict(measured) for name, measured in found.items()})
    elif found:
        out().print(shown)
    else:
        raise ClusterError("no node has a known accelerator that is not simulated; add one")


def measured_rows(name: str, measured: HardwareMeasured) -> list[tuple[str, str, str]]:
    """Returns rows of quantity, measured rate, and its share of the catalogue's peak."""
    sku = catalogue.find(name)
    rows = [
        (f"{precision} matrix", f"{rate:.3g} TFLOP/s", _share(rate, peak))
        for precision, rate in measured.tflops.items()
        for peak in (catalogue.peak_tflops(name, precision),)
    ]
    memory = measured.bandwidth_gb_per_s
    rows.append(("memory", f"{memory:,.0f} GB/s", _share(memory, sku.bandwidth_gb_per_s)))
    if measured.host_gb_per_s is not None:
        rows.append(("from host", f"{measured.host_gb_per_s:.3g} GB/s", "–"))
    if measured.all_reduce_gb_per_s is not None:
        # the catalogue counts both directions of a link
        link = sku.interconnect_gb_per_s
        rate = measured.all_reduce_gb_per_s
        share = _share(rate, link / 2 if link else None)
        rows.append((f"all-reduce over {measured.workers}", f"{rate:.3g} GB/s", share))
    return rows


def _share(rate: float, peak: float | None) -> str:
    return f"{rate / peak:.0%}" if peak else "–"
