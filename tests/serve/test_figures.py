"""Figures of served versions from counts at several moments."""

import math

import pytest

from serve.deploy import figures
from serve.deploy.figures import Histogram, Reading, RolloutState
from serve.deploy.routing import Route
from serve.deploy.served import ServedVersion

ID, APPLICATION = "0123456789ab", "reviews--0123456789ab"
VERSION = ServedVersion("reviews", ID, "/reviews", 100, "RUNNING", 1)
Process = tuple[str, int]
PROXY: Process = ("/run/admin.sock", 1)
NEXT: Process = ("/run/admin.sock", 2)


def times(replica: str, below_10_ms: int, below_50_ms: int, every: int) -> Histogram:
    """The times of a replica as Prometheus has them."""
    counts = {0.01: below_10_ms, 0.05: below_50_ms, math.inf: every}
    return {(replica, bound): float(count) for bound, count in counts.items()}


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [
        (0.5, {0.1: 10, 0.2: 10, math.inf: 10}, 0.05),
        (0.5, {0.1: 0, 0.2: 10, math.inf: 10}, 0.15),
        (0.95, {0.1: 50, 0.2: 90, math.inf: 100}, 0.2),  # beyond the last bound
        (0.9, {0.1: 50, 0.2: 90, math.inf: 100}, 0.2),
        (0.5, {0.1: 0, math.inf: 0}, None),
        (0.5, {}, None),
    ],
)
def test_quantiles_are_those_of_prometheus(
    share: float, counts: dict[float, float], expected: float | None
) -> None:
    found = figures.quantile(share, counts)
    assert found == (None if expected is None else pytest.approx(expected))


def test_figures_are_of_what_was_counted_between_the_readings() -> None:
    readings = [
        Reading(0.0, {APPLICATION: {PROXY: (1000, 50)}}, {APPLICATION: times("a", 900, 990, 1000)}),
        Reading(
            5.0, {APPLICATION: {PROXY: (1020, 51)}}, {APPLICATION: times("a", 920, 1010, 1020)}
        ),
        Reading(10.0, {APPLICATION: {NEXT: (20, 1)}}, {APPLICATION: times("b", 0, 20, 20)}),
    ]
    (found,) = figures.figures([VERSION], readings)
    assert found.requests_per_s == 4.0
    assert found.error_share == pytest.approx(2 / 40)
    assert found.p50_ms == pytest.approx(10.0)
    assert found.p95_ms == pytest.approx(46.0)
    assert found.seconds == 10.0


def test_a_version_that_nobody_asks_has_no_times_and_no_errors() -> None:
    (first,) = figures.figures([VERSION], [Reading(0.0)])
    assert (first.requests_per_s, first.seconds) == (None, 0.0)
    (idle,) = figures.figures([VERSION], [Reading(0.0), Reading(5.0)])
    assert (idle.requests_per_s, idle.error_share, idle.p95_ms) == (0.0, None, None)


def test_series_of_other_releases_are_left_out() -> None:
    labels = {"model": "reviews", "version": ID, "replica": "a", "le": "0.01"}
    rows = [(labels, 3.0), ({**labels, "le": "+Inf"}, 4.0), ({"le": "1"}, 9.0), ({}, 1.0)]
    assert figures.histograms(rows) == {APPLICATION: {("a", 0.01): 3.0, ("a", math.inf): 4.0}}


def test_replicas_count_where_there_is_no_haproxy() -> None:
    def rows(fine: float, failed: float) -> figures.Rows:
        labels = {"model": "reviews", "version": ID, "replica": "a", "path": "/predict"}
        return [
            ({**labels, "status": "200"}, fine),
            ({**labels, "status": "404"}, 1.0),
            ({**labels, "status": "503"}, failed),
            ({**labels, "status": "none"}, 9.0),
        ]

    readings = [
        Reading(0.0, figures.counts(rows(10, 0))),
        Reading(5.0, figures.counts(rows(17, 3))),
    ]
    (found,) = figures.figures([VERSION], readings)
    assert (found.requests_per_s, found.error_share) == (2.0, 0.3)


def test_a_route_with_two_versions_is_a_rollout() -> None:
    routes = {
        "/b": Route("old", "new", 10, model="reviews"),
        "/a": Route("one", model="other"),
        "/c": Route("old", "new", 0, model="ended"),
    }
    assert figures.rollouts(routes) == (RolloutState("/b", "reviews", "old", "new", 10),)
