"""Reads what the Ray nodes of a cluster publish for Prometheus, and what of it is of devices."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import prometheus_client.parser

TIMEOUT_S = 3.0
"""Longest time for a node's exporter to answer."""
MOST_AT_ONCE = 16
MIB, GIB = 2.0**20, 2.0**30
OF_NODES = (
    "ray_node_cpu_utilization",
    "ray_node_mem_used",
    "ray_node_mem_total",
    "ray_node_gpus_utilization",
    "ray_node_gram_used",
    "ray_node_gram_available",
)
"""Prometheus metrics that Ray exports for each node: use of its CPUs, memory and GPUs."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value of a Prometheus series."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one GPU does."""

    index: int
    percent: float | None
    """Share of the time in which it computed; None if it does not say."""
    memory_gib: float | None
    """Memory in use."""
    of_gib: float | None
    """All of its memory."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What the cores, the memory and the GPUs of a node do; None for what it does not publish."""

    cpu_percent: float | None = None
    """Mean use of the node's cores, in percent."""
    memory_gib: float | None = None
    """Host memory in use."""
    of_gib: float | None = None
    """All host memory."""
    gpus: tuple[GpuUse, ...] = field(default=())


def scrape(addresses: Sequence[str], names: Iterable[str]) -> list[tuple[Series, ...] | None]:
    """Returns the series with these names at each address; None for one that does not answer.

    Args:
        addresses: Host and port of exporters.
        names: Full names of the series.
    """
    wanted = frozenset(names)

    def read(address: str) -> tuple[Series, ...] | None:
        try:
            answer = client.get(f"http://{address}/metrics").raise_for_status()
            return parse(answer.text, wanted)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None

    with (
        httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
        ThreadPoolExecutor(MOST_AT_ONCE) as pool,
    ):
        return list(pool.map(read, addresses))


def parse(text: str, names: frozenset[str]) -> tuple[Series, ...]:
    """Returns the series with these names in a text of Prometheus' format.

    Raises:
        ValueError: if one of their lines has another form.
    """
    lines = (line for line in text.splitlines() if _name_of(line) in names)
    families = prometheus_client.parser.text_string_to_metric_families("\n".join(lines) + "\n")
    return tuple(
        Series(sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
    )


def use_of(series: Iterable[Series]) -> NodeUse:
    """Returns what a node's series say of its cores, its memory and its GPUs."""
    found: dict[str, float] = {}
    gpus: dict[int, dict[str, float]] = {}
    for each in series:
        index = each.labels.get("GpuIndex", "")
        if each.name in OF_NODES:
            kept = gpus.setdefault(int(index), {}) if index.isdigit() else found
            kept[each.name.removeprefix("ray_node_")] = each.value
    return NodeUse(
        cpu_percent=found.get("cpu_utilization"),
        memory_gib=_scaled(found.get("mem_used"), GIB),
        of_gib=_scaled(found.get("mem_total"), GIB),
        gpus=tuple(_gpu(index, values) for index, values in sorted(gpus.items())),
    )


def _gpu(index: int, values: Mapping[str, float]) -> GpuUse:
    used, left = values.get("gram_used"), values.get("gram_available")
    whole = None if used is None or left is None else used + left
    mib_a_gib = GIB / MIB
    return GpuUse(
        index, values.get("gpus_utilization"), _scaled(used, mib_a_gib), _scaled(whole, mib_a_gib)
    )


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _name_of(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]
