"""Ranks devices, engines and batch sizes by cost within a latency limit. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.spec.serve import EngineName
from serve.engines.timing_curve import Curve

SIZES = (1, 4, 16, 64, 256)
"""Batch sizes that are timed, in texts."""
BATCHES_WAITED = 2.0
"""Longest time of a text in batches: one that arrives just after a batch has started waits for that
batch and then for its own."""
OVERHEAD_S = 0.004
"""Time of a request besides its batches, on two CPU cores with one client: benchmarks/HISTORY.md.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """An accelerator, an engine and a batch size to serve with."""

    accelerators: str
    engine: EngineName
    max_batch_size: int
    texts_per_s: float
    """Throughput of one replica under full load."""
    latency_ms: float
    """Estimate of the longest latency of a single text under full load."""
    usd_per_million: float | None
    """Cost of a million texts under full load; None if no price is known."""


def options(
    curves: Sequence[Curve], prices: Mapping[str, float | None], limit_ms: float | None
) -> tuple[Option, ...]:
    """Returns every option within the latency limit, the cheapest first.

    If a price is missing, the fastest is first.

    Args:
        curves: Batch times by accelerator and engine.
        prices: USD per hour by `accelerators`; None if unknown.
        limit_ms: Latency limit; None for no limit.
    """
    allowed = []
    for curve in curves:
        for size, seconds in (curve.seconds or {}).items():
            latency_ms = 1000 * (BATCHES_WAITED * seconds + OVERHEAD_S)
            if limit_ms is not None and latency_ms > limit_ms:
                continue
            rate, price = size / seconds, prices.get(curve.accelerators)
            cost = None if price is None else price / 3600 / rate * 1e6
            allowed.append(Option(curve.accelerators, curve.engine, size, rate, latency_ms, cost))
    unpriced = any(option.usd_per_million is None for option in allowed)
    return tuple(
        sorted(allowed, key=lambda o: 1 / o.texts_per_s if unpriced else o.usd_per_million or 0.0)
    )
