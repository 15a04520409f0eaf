"""Whether a new version may take over: from what was seen to reasons against it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.spec.serve import GateRule, SloSpec
from serve.tasks.comparison import Comparison

FEWEST = 20
"""Requests below which a share of failures says nothing."""
FAILURES = 0.01
"""Share of failures above the old version's that is too much where no slo says otherwise."""
SLACK_MS = 2.0
"""Difference in latency that is never too much: timers and schedulers make as much."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What happened to requests of one version for some time."""

    requests: int
    failed: int
    p95_ms: float | None
    """Of those that the gate sent; None where none of them was answered."""

    @property
    def error_rate(self) -> float:
        """Share of requests that failed."""
        return self.failed / self.requests if self.requests else 0.0


def reasons_against(
    gate: Sequence[GateRule],
    slo: SloSpec | None,
    quality: Comparison | None,
    old: Traffic,
    new: Traffic,
) -> tuple[str, ...]:
    """Why the new version may not go on, in words; none when it may."""
    found = [*_failures(slo, old, new)]
    for rule in gate:
        match rule.name:
            case "slo":
                found += _slo(slo, new)
            case "latency":
                found += _latency(rule, old, new)
            case _:
                found += _quality(rule, quality)
    return tuple(found)


def _failures(slo: SloSpec | None, old: Traffic, new: Traffic) -> Iterator[str]:
    if new.requests and new.p95_ms is None:
        yield f"it answers none of the gate's requests, of {new.requests} in all"
        return
    if new.requests < FEWEST:
        return
    if slo and slo.error_rate:
        if not slo.error_rate.holds(new.error_rate):
            yield f"{new.error_rate:.2%} of its requests fail, which is not {slo.error_rate}"
    elif new.error_rate > old.error_rate + FAILURES:
        old_share = f"{old.error_rate:.2%} of the old one's"
        yield f"{new.error_rate:.2%} of its requests fail, and {old_share}"


def _slo(slo: SloSpec | None, new: Traffic) -> Iterator[str]:
    if slo and slo.p95_latency and new.p95_ms is not None:
        limit_ms = 1000 * slo.p95_latency.total_seconds()
        if new.p95_ms > limit_ms:
            yield f"its p95 latency is {new.p95_ms:.1f} ms, over the slo of {limit_ms:g} ms"


def _latency(rule: GateRule, old: Traffic, new: Traffic) -> Iterator[str]:
    if rule.bound is None or old.p95_ms is None or new.p95_ms is None:
        return
    if new.p95_ms > old.p95_ms + SLACK_MS and not rule.bound.holds(new.p95_ms / old.p95_ms):
        yield (
            f"its p95 latency is {new.p95_ms:.1f} ms, {new.p95_ms / old.p95_ms:.1f} times the old"
            f" one's {old.p95_ms:.1f} ms"
        )


def _quality(rule: GateRule, comparison: Comparison | None) -> Iterator[str]:
    """Evaluates a rule with the metric of the same name in the task's comparison."""
    metric = comparison.metrics.get(rule.name) if comparison else None
    if metric and rule.bound and not rule.bound.holds(metric.value) and not metric.is_chance:
        yield f"{metric.sentence}, which is not {rule.bound}"
