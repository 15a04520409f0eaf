"""The latency histogram, which several threads count in."""

from serve.http.metrics import BUCKETS_S, LatencyHistogram


class Turn:
    """A lock whose release gives another thread its turn, which counts a request of 1 s."""

    def __init__(self, histogram: LatencyHistogram) -> None:
        self._histogram = histogram

    def __enter__(self) -> None:
        """Takes the lock."""

    def __exit__(self, *_: object) -> None:
        self._histogram.counts[BUCKETS_S.index(1.0)] += 1
        self._histogram.total_s += 1.0


def test_counts_and_sum_of_a_scrape_are_of_the_same_moment() -> None:
    histogram = LatencyHistogram()
    for _ in range(3):
        histogram.observe(1.0)
    histogram._lock = Turn(histogram)  # type: ignore[assignment]
    for requests in (3, 4):
        (metric,) = histogram.collect()
        values = {(s.name.rpartition("_")[2], s.labels.get("le")): s.value for s in metric.samples}
        assert values["bucket", "+Inf"] == values["count", None] == requests
        assert values["sum", None] == requests
        assert values["bucket", "0.5"] == 0
