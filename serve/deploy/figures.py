"""What each served version does: requests, errors and times, from counts at several moments. Pure.

Counts are those of HAProxy, and of the replicas, which publish them through Ray.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from serve.deploy.rollout import Counts, grown
from serve.deploy.routing import Routes, application_of
from serve.deploy.served import ServedVersion

LATENCY = "ray_winnow_serve_request_seconds_bucket"
"""Series of the replicas' histogram of times."""
REQUESTS = "ray_winnow_serve_requests_total"
"""Series of the replicas' answers by status."""
SERIES = (LATENCY, REQUESTS)
FAILED = 500
"""Lowest status of an error."""

Rows: TypeAlias = Sequence[tuple[Mapping[str, str], float]]
"""Labels and values of a series."""
Histogram: TypeAlias = Mapping[tuple[str, float], float]
"""Cumulative number of answers, by replica and upper bound in seconds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was counted up to one moment."""

    at: float
    """Seconds since an arbitrary moment."""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """Answers and errors by application, as HAProxy counts them, else the replicas."""
    times: Mapping[str, Histogram] = field(default_factory=dict)
    """Times of a version's replicas, by application."""


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """A served version, and what it did in the last moments."""

    served: ServedVersion
    requests_per_s: float | None
    """Answers of all kinds; None before two readings."""
    error_share: float | None
    """Share of the answers with a status of 500 and above; None without answers."""
    p50_ms: float | None
    """Median time from the complete request to the answer; None without answers."""
    p95_ms: float | None
    seconds: float
    """Length of the period that these figures are of."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """A route that two versions answer."""

    route: str
    model: str
    old: str
    new: str
    percent: int
    """Percentage of the requests that the new version answers."""


def figures(
    versions: Sequence[ServedVersion], readings: Sequence[Reading]
) -> tuple[VersionFigures, ...]:
    """Returns what each version did from the first to the last reading."""
    return tuple(_figures(each, readings) for each in versions)


def rollouts(routes: Routes) -> tuple[RolloutState, ...]:
    """Returns the rollouts that go on, by route."""
    return tuple(
        RolloutState(name, route.model, route.stable, route.canary, route.weight)
        for name, route in sorted(routes.items())
        if route.canary and route.weight
    )


def counts(rows: Rows) -> dict[str, Counts]:
    """Returns answers and errors by application and replica, from the rows of REQUESTS."""
    found: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
    for labels, value in rows:
        try:
            name = application_of(labels["model"], labels["version"])
            key, is_error = (labels["replica"], 0), int(labels["status"]) >= FAILED
        except (KeyError, ValueError):
            continue  # of a release with other labels
        answers, errors = found.setdefault(name, {}).get(key, (0, 0))
        found[name][key] = answers + int(value), errors + int(value) * is_error
    return dict(found)


def histograms(rows: Rows) -> dict[str, Histogram]:
    """Returns the times by application, from the rows of LATENCY."""
    found: dict[str, dict[tuple[str, float], float]] = {}
    for labels, value in rows:
        try:
            name = application_of(labels["model"], labels["version"])
            key = labels["replica"], float(labels["le"])
        except (KeyError, ValueError):
            continue  # of a release with other labels
        found.setdefault(name, {})[key] = value
    return dict(found)


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Returns a quantile of a histogram in seconds, linear within a bucket; None without counts.

    Source: `histogram_quantile` of Prometheus. Beyond the last finite bound it is that bound.

    Args:
        share: Between 0 and 1.
        buckets: Cumulative counts by upper bound.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank, low, below = share * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank and buckets[bound] > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (buckets[bound] - below)
        low, below = bound, max(below, buckets[bound])
    return low


def _figures(version: ServedVersion, readings: Sequence[Reading]) -> VersionFigures:
    seconds = readings[-1].at - readings[0].at if readings else 0.0
    name = application_of(version.name, version.version) if version.version else version.name
    if seconds <= 0:
        return VersionFigures(version, None, None, None, None, 0.0)
    answers, errors = grown([each.counts.get(name, {}) for each in readings])
    buckets = _grown_buckets([each.times.get(name, {}) for each in readings])
    p50, p95 = quantile(0.5, buckets), quantile(0.95, buckets)
    return VersionFigures(
        served=version,
        requests_per_s=answers / seconds,
        error_share=errors / answers if answers else None,
        p50_ms=None if p50 is None else 1000 * p50,
        p95_ms=None if p95 is None else 1000 * p95,
        seconds=seconds,
    )


def _grown_buckets(readings: Sequence[Histogram]) -> dict[float, float]:
    """Returns how much each bucket of all replicas grew from the first to the last reading.

    A replica that came after the first reading counts from 0, as does one that has started again.
    """
    added: dict[float, float] = {}
    for before, now in itertools.pairwise(readings):
        for key, count in now.items():
            known = before.get(key, 0.0)
            more = count - known if count >= known else count
            added[key[1]] = added.get(key[1], 0.0) + more
    return added
