"""What Winnow tells Prometheus through Ray, which serves it on each node's metrics port."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray.util.metrics

INTERVAL_S = 5.0
"""How often a replica's own counters are passed on; Ray reports as often."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number, as Prometheus names it; Ray puts `ray_` before the name."""

    name: str
    value: float
    labels: Mapping[str, str]


class GaugePublisher:
    """Passes samples on. Counters go as gauges: their values are sums already."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}

    def tell(self, samples: Iterable[Sample]) -> None:
        """Pass on the newest values."""
        for sample in samples:
            if sample.name not in self._gauges:
                self._gauges[sample.name] = ray.util.metrics.Gauge(
                    sample.name, tag_keys=tuple(sample.labels)
                )
            self._gauges[sample.name].set(sample.value, tags=dict(sample.labels))


def keep_telling(read: Callable[[], Iterable[Sample]]) -> None:
    """Pass samples on as long as this process lives, from a thread of its own."""
    teller = GaugePublisher()

    def work() -> None:
        while True:
            teller.tell(read())
            time.sleep(INTERVAL_S)

    threading.Thread(target=work, daemon=True, name="telemetry").start()
