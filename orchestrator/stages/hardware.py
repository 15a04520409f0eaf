"""Runs the hardware benchmark on each kind of device."""

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
    """Measure each known SKU on the largest node that has it, with all its devices together.

    Simulated nodes are skipped. A CPU is measured by one worker, because several would share the
    memory bandwidth that they measure.
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
