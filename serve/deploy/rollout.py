"""Evaluates the gate of a rollout: returns the rules that the new version breaks. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.spec.serve import GateRule, SloSpec
from serve.tasks.comparison import Comparison

FEWEST = 20
"""Fewest requests for which the error rate is evaluated."""
FAILURES = 0.01
"""Largest accepted increase of the error rate over the old version's, if no slo has a limit."""
SLACK_MS = 2.0
"""Increase of the p95 latency that is always accepted, because timers and schedulers cause it."""

Counts = Mapping[tuple[str, int], tuple[int, int]]
"""An application's answers and errors (5xx), by the socket and the process id of a HAProxy."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of one version's requests during a period."""

    requests: int
    """Requests of clients and of the gate."""
    failed: int
    p95_ms: float | None
    """95th percentile of the latency of the gate's requests; None if none was answered."""
    first_token_p95_ms: float | None = None
    """Of the time to the first token; None if the model writes no text."""
    token_p95_ms: float | None = None
    """Of the mean time of each further token of an answer."""

    @property
    def error_rate(self) -> float:
        """Share of failed requests."""
        return self.failed / self.requests if self.requests else 0.0


def grown(readings: Sequence[Counts]) -> tuple[int, int]:
    """Returns the answers and the errors from the first to the last reading of HAProxy's counters.

    Ray Serve replaces HAProxy's process when replicas come or go, and the counters of a new process
    start at 0. What the old one counted after its last reading is lost.
    """
    answers = errors = 0
    for before, now in itertools.pairwise(readings):
        for process, counted in now.items():
            known = before.get(process, (0, 0))
            answers, errors = answers + counted[0] - known[0], errors + counted[1] - known[1]
    return answers, errors


def reasons_against(
    gate: Sequence[GateRule],
    slo: SloSpec | None,
    quality: Comparison | None,
    old: Traffic,
    new: Traffic,
) -> tuple[str, ...]:
    """Returns a sentence for each rule that the new version breaks; empty if it passes.

    The error rate is checked always, even if no rule of the gate names it.

    Args:
        gate: Rules of `serve.rollout.gate`.
        slo: The endpoint's `serve.slo`.
        quality: Comparison of both versions on evaluation rows; None if there is none.
        old: Traffic of the old version.
        new: Traffic of the new version.
    """
    reasons = [*_failures(slo, old, new)]
    for rule in gate:
        match rule.name:
            case "slo":
                reasons += _slo(slo, new)
            case "latency":
                reasons += _latency(rule, old, new)
            case _:
                reasons += _quality(rule, quality)
    return tuple(reasons)


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
    if slo is None:
        return
    for name, limit, found_ms in (
        ("p95 latency", slo.p95_latency, new.p95_ms),
        ("p95 time to the first token", slo.p95_ttft, new.first_token_p95_ms),
        ("p95 time per output token", slo.p95_tpot, new.token_p95_ms),
    ):
        limit_ms = None if limit is None else 1000 * limit.total_seconds()
        if limit_ms is not None and found_ms is not None and found_ms > limit_ms:
            yield f"its {name} is {found_ms:.1f} ms, over the slo of {limit_ms:g} ms"


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
