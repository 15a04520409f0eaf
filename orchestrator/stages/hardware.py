"""Measures what each kind of device reaches by itself."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cluster import catalogue
from cluster.inventory import Inventory
from cluster.placement import Placement, place
from jobs.spec.quantities import AcceleratorRequest
from jobs.training.events import HardwareMeasured
from jobs.training.probing.hardware_benchmark import HardwareRequest, measure
from orchestrator.stages.group import Start, stream


def measure_each(
    inventory: Inventory, storage: Path
) -> Iterator[tuple[Placement, HardwareMeasured]]:
    """Measure each known, real SKU on the largest node that has it, all its devices together.

    Cores count as one device: several workers would share the memory they measure.
    """
    for sku in inventory.counts():
        nodes = [node for node in inventory.with_sku(sku) if not node.simulated]
        if not nodes:
            continue
        node = max(nodes, key=lambda node: node.devices)
        count = 1 if sku == catalogue.CPU else node.devices
        placement = place(AcceleratorRequest(sku, count), Inventory((node,)), {})
        request = HardwareRequest(placement.device, catalogue.find(sku).precisions)
        events = stream(Start(measure, request, placement, "hardware", storage))
        with contextlib.closing(events):
            for event in events:
                if isinstance(event, HardwareMeasured):
                    yield placement, event
