"""Publishes gauges to Prometheus through Ray, which exports them on each node's metrics port."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray.util.metrics

INTERVAL_S = 5.0
"""How often a replica's counters are published; Ray exports metrics at the same interval."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a Prometheus series; Ray prefixes the name with `ray_`."""

    name: str
    value: float
    labels: Mapping[str, str]


class GaugePublisher:
    """Publishes samples as gauges, counters included: their values are already sums."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}

    def publish(self, samples: Iterable[Sample]) -> None:
        """Set each series to its newest value."""
        for sample in samples:
            if sample.name not in self._gauges:
                self._gauges[sample.name] = ray.util.metrics.Gauge(
                    sample.name, tag_keys=tuple(sample.labels)
                )
            self._gauges[sample.name].set(sample.value, tags=dict(sample.labels))


def publish_regularly(read: Callable[[], Iterable[Sample]]) -> None:
    """Publish the samples that `read` returns every INTERVAL_S, from a daemon thread."""
    publisher = GaugePublisher()

    def work() -> None:
        while True:
            publisher.publish(read())
            time.sleep(INTERVAL_S)

    threading.Thread(target=work, daemon=True, name="telemetry").start()
