"""Prometheus metrics of one replica."""

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
"""Upper bounds of the latency histogram, in seconds."""


class LatencyHistogram(prometheus_client.registry.Collector):
    """A histogram that adds the counts of other histograms, as prometheus_client's cannot."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Requests in each bucket, not cumulative; the last bucket has no upper bound."""
        self.total_s = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Counts one request that took this many seconds."""
        index = bisect.bisect_left(BUCKETS_S, seconds)
        with self._lock:
            self.counts[index] += 1
            self.total_s += seconds

    def add(self, counts: Sequence[int], total_s: float) -> None:
        """Adds the counts and the total of another histogram."""
        with self._lock:
            self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
            self.total_s += total_s

    def collect(self) -> Iterator[prometheus_client.Metric]:
        """Yields the histogram in Prometheus' cumulative form."""
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        with self._lock:
            counts, total_s = list(itertools.accumulate(self.counts)), self.total_s
        yield HistogramMetricFamily(
            "winnow_serve_request_seconds",
            "Time from the complete request body to the response.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=total_s,
        )


class Metrics:
    """Counters and gauges of one replica."""

    def __init__(self, name: str, version: str) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        fixed: dict[str, Any] = {"registry": self.registry, "namespace": "winnow_serve"}
        info = prometheus_client.Info("model", "Model that this replica serves.", **fixed)
        info.info({"name": name, "version": version})
        self.requests = prometheus_client.Counter(
            "requests",
            "Requests by path and status.",
            ("path", "status"),
            **fixed,
        )
        self.callers = prometheus_client.Counter(
            "token_requests", "Requests by the name of their token.", ("token",), **fixed
        )
        self._request_counters: dict[tuple[str, int], prometheus_client.Counter] = {}
        self._caller_counters: dict[str, prometheus_client.Counter] = {}
        self.latency = LatencyHistogram()
        self.registry.register(self.latency)
        self.texts = prometheus_client.Counter("texts", "Texts answered.", **fixed)
        self.batches = prometheus_client.Counter("batches", "Batches run.", **fixed)
        self.batch_rows = prometheus_client.Counter("batch_rows", "Rows of batches.", **fixed)
        self.batch_tokens = prometheus_client.Counter("batch_tokens", "Tokens of batches.", **fixed)
        self.engine_seconds = prometheus_client.Counter(
            "engine_seconds",
            "Time that the engine computed.",
            **fixed,
        )
        self.queue_tokens = prometheus_client.Gauge("queue_tokens", "Tokens in the queue.", **fixed)
        self.backlog = prometheus_client.Gauge(
            "backlog_seconds",
            "Expected time until all queued requests are answered.",
            **fixed,
        )

    def count(self, path: str, status: int, number: int = 1) -> None:
        """Counts requests by path and status."""
        key = path, status
        if key not in self._request_counters:  # `labels` is slow
            self._request_counters[key] = self.requests.labels(*key)
        self._request_counters[key].inc(number)

    def count_caller(self, name: str, number: int = 1) -> None:
        """Counts requests by the name of their token."""
        if name not in self._caller_counters:
            self._caller_counters[name] = self.callers.labels(name)
        self._caller_counters[name].inc(number)

    def count_answer(self, texts: int, seconds: float) -> None:
        """Counts one answered request with its number of texts and its latency."""
        self.latency.observe(seconds)
        self.texts.inc(texts)

    def on_batch(self, rows: int, tokens: int, seconds: float) -> None:
        """Counts one batch: its rows, its tokens, and the seconds that the engine computed."""
        self.batches.inc()
        self.batch_rows.inc(rows)
        self.batch_tokens.inc(tokens)
        self.engine_seconds.inc(seconds)

    def scrape(self, load: Load) -> bytes:
        """Returns all metrics in Prometheus' text format, with the current queue."""
        self._set_queue(load)
        return prometheus_client.generate_latest(self.registry)

    def samples(self, load: Load) -> Iterator[tuple[str, float, dict[str, str]]]:
        """Yields name, value and labels of every metric, with the current queue."""
        self._set_queue(load)
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith(("_created", "_info")):
                    yield sample.name, sample.value, sample.labels

    def _set_queue(self, load: Load) -> None:
        self.queue_tokens.set(load.tokens)
        self.backlog.set(load.backlog_s)
