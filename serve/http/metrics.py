"""What one replica counts, for Prometheus."""

import bisect
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import prometheus_client
import prometheus_client.registry
from prometheus_client.core import HistogramMetricFamily

from serve.batching.client import Load

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram."""


class Latencies(prometheus_client.registry.Collector):
    """A histogram that others' counts can be added to, which Prometheus' own cannot."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Of each bucket by itself."""
        self.total_s = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one."""
        index = bisect.bisect_left(BUCKETS_S, seconds)
        with self._lock:
            self.counts[index] += 1
            self.total_s += seconds

    def add(self, counts: Sequence[int], total_s: float) -> None:
        """Count those of another one too."""
        with self._lock:
            self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
            self.total_s += total_s

    def collect(self) -> Iterator[prometheus_client.Metric]:
        """For Prometheus."""
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        with self._lock:
            counts, total_s = itertools.accumulate(self.counts), self.total_s
        yield HistogramMetricFamily(
            "winnow_serve_request_seconds",
            "From the whole body to the answer.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=total_s,
        )


class Metrics:
    """Counters of one replica, for Prometheus."""

    def __init__(self, name: str, version: str) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        fixed: dict[str, Any] = {"registry": self.registry, "namespace": "winnow_serve"}
        info = prometheus_client.Info("model", "Which model answers.", **fixed)
        info.info({"name": name, "version": version})
        self.requests = prometheus_client.Counter(
            "requests",
            "Requests by path and status.",
            ("path", "status"),
            **fixed,
        )
        self.callers = prometheus_client.Counter(
            "token_requests", "Requests by whose token they carry.", ("token",), **fixed
        )
        self._counted: dict[tuple[str, int], prometheus_client.Counter] = {}
        self._callers: dict[str, prometheus_client.Counter] = {}
        self.latency = Latencies()
        self.registry.register(self.latency)
        self.texts = prometheus_client.Counter("texts", "Texts answered.", **fixed)
        self.batches = prometheus_client.Counter("batches", "Batches run.", **fixed)
        self.batch_rows = prometheus_client.Counter("batch_rows", "Rows of batches.", **fixed)
        self.batch_tokens = prometheus_client.Counter("batch_tokens", "Tokens of batches.", **fixed)
        self.engine_seconds = prometheus_client.Counter(
            "engine_seconds",
            "Time the engine worked.",
            **fixed,
        )
        self.queue_tokens = prometheus_client.Gauge("queue_tokens", "Tokens that wait.", **fixed)
        self.backlog = prometheus_client.Gauge(
            "backlog_seconds",
            "Until all that waits is answered.",
            **fixed,
        )

    def count(self, path: str, status: int, number: int = 1) -> None:
        """Count requests; the lookup by labels is slow."""
        key = path, status
        if key not in self._counted:
            self._counted[key] = self.requests.labels(*key)
        self._counted[key].inc(number)

    def count_caller(self, name: str, number: int = 1) -> None:
        """Count requests under the name of their token."""
        if name not in self._callers:
            self._callers[name] = self.callers.labels(name)
        self._callers[name].inc(number)

    def answered(self, texts: int, seconds: float) -> None:
        """Count an answer."""
        self.latency.observe(seconds)
        self.texts.inc(texts)

    def on_batch(self, rows: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.batches.inc()
        self.batch_rows.inc(rows)
        self.batch_tokens.inc(tokens)
        self.engine_seconds.inc(seconds)

    def scrape(self, load: Load) -> bytes:
        """In Prometheus' format, with what waits now."""
        self._wait(load)
        return prometheus_client.generate_latest(self.registry)

    def samples(self, load: Load) -> Iterator[tuple[str, float, dict[str, str]]]:
        """Name, value and labels of each, with what waits now."""
        self._wait(load)
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith(("_created", "_info")):
                    yield sample.name, sample.value, sample.labels

    def _wait(self, load: Load) -> None:
        self.queue_tokens.set(load.tokens)
        self.backlog.set(load.backlog_s)
