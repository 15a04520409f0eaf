"""`winnow hardware`: the accelerators that are known, and those that are here."""

import rich.table

from cluster import catalogue, local
from orchestrator.cli.options import Address, AsJson, InventoryFile, out, print_json
from orchestrator.cli.plan import known_inventory, live_inventory


def hardware(
    inventory: InventoryFile = None, address: Address = None, as_json: AsJson = False
) -> None:
    """List every known accelerator with memory, precisions and price, and the live nodes."""
    nodes = live_inventory(address) if address else known_inventory(inventory)
    skus = list(catalogue.catalogue().values())
    if as_json:
        print_json({"accelerators": skus, "nodes": nodes.nodes if nodes else None})
        return
    counts = nodes.counts() if nodes else {}
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "accelerator",
        "here",
        "memory GiB",
        "GB/s",
        "tensor TFLOPS",
        "USD/h",
        "precisions",
    ):
        table.add_column(name, justify="left" if name in ("accelerator", "precisions") else "right")
    for sku in skus:
        numbers = (
            sku.memory_gib,
            sku.bandwidth_gb_per_s,
            sku.tensor_tflops,
            sku.price_usd_per_hour,
        )
        shown = ("–" if number is None else f"{number:g}" for number in numbers)
        here = str(counts.get(sku.name, "")) if nodes else ""
        table.add_row(sku.name, here, *shown, ", ".join(sku.precisions))
    out().print(table)
    if nodes is None and local.running() is None:
        out().print("\nno cluster is up; `winnow up` starts one")
