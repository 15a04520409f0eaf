"""Which device, engine and batch size serve cheapest within a latency: decided from timings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.spec.serve import EngineName
from serve.engines.curve import Curve

SIZES = (1, 4, 16, 64, 256)
"""Most texts of a batch that are timed."""
BATCHES_WAITED = 2.0
"""A text that comes when a batch has just begun waits for that one and then for its own."""
BESIDE_S = 0.004
"""What the way in and out takes besides, on two CPU cores at one client: benchmarks/HISTORY.md."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve."""

    accelerators: str
    engine: EngineName
    max_batch_size: int
    texts_per_s: float
    """Of one replica under full load."""
    latency_ms: float
    """About the longest of a single text under that load."""
    usd_per_million: float | None
    """Of texts under full load; None where no price is known."""


def options(
    curves: Sequence[Curve], prices: Mapping[str, float | None], limit_ms: float | None
) -> tuple[Option, ...]:
    """Every way that keeps the latency, the cheapest first; the fastest where prices lack.

    `prices`: USD of an hour of the devices, by `accelerators`.
    """
    found = []
    for curve in curves:
        for size, seconds in (curve.seconds or {}).items():
            latency_ms = 1000 * (BATCHES_WAITED * seconds + BESIDE_S)
            if limit_ms is not None and latency_ms > limit_ms:
                continue
            rate, price = size / seconds, prices.get(curve.accelerators)
            cost = None if price is None else price / 3600 / rate * 1e6
            found.append(Option(curve.accelerators, curve.engine, size, rate, latency_ms, cost))
    unpriced = any(option.usd_per_million is None for option in found)
    return tuple(
        sorted(found, key=lambda o: 1 / o.texts_per_s if unpriced else o.usd_per_million or 0.0)
    )
