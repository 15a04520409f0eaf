"""Whether a new version may take over: from what was seen to reasons against it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.spec.quantities import format_metric
from jobs.spec.serve import GateRule, SloSpec

CHANCE = 1.96
"""Standard deviations that a difference must exceed to be no accident."""
FEWEST = 20
"""Requests below which a share of failures says nothing."""
FAILURES = 0.01
"""Share of failures above the old version's that is too much where no slo says otherwise."""
SLACK_MS = 2.0
"""Difference in latency that is never too much: timers and schedulers make as much."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Labels of both versions on the same labelled texts."""

    rows: int
    agreeing: int
    only_old_right: int
    only_new_right: int

    @property
    def change(self) -> float:
        """Accuracy of the new version minus that of the old one."""
        return (self.only_new_right - self.only_old_right) / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return f"accuracy {self.change:+.3f}"

    @property
    def is_chance(self) -> bool:
        """Whether the change may be an accident (McNemar's test)."""
        differing = self.only_old_right + self.only_new_right
        difference = abs(self.only_old_right - self.only_new_right)
        return difference <= CHANCE * math.sqrt(differing)


@dataclass(frozen=True, slots=True)
class Perplexities:
    """Of two language models, each on the evaluation rows that it was trained with."""

    old: float
    new: float

    def __str__(self) -> str:
        return f"perplexity {format_metric(self.new)} after {format_metric(self.old)}"


Quality = Judged | Perplexities


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


def compare(old: Sequence[str], new: Sequence[str], right: Sequence[str]) -> Judged:
    """Count labels of two versions against the right ones."""
    rows = list(zip(old, new, right, strict=True))
    return Judged(
        rows=len(rows),
        agreeing=sum(a == b for a, b, _ in rows),
        only_old_right=sum(a == c != b for a, b, c in rows),
        only_new_right=sum(b == c != a for a, b, c in rows),
    )


def reasons_against(
    gate: Sequence[GateRule],
    slo: SloSpec | None,
    quality: Quality | None,
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
            case "perplexity":
                found += _perplexity(rule, quality) if isinstance(quality, Perplexities) else []
            case _:
                found += _labels(rule, quality) if isinstance(quality, Judged) else []
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


def _perplexity(rule: GateRule, found: Perplexities) -> Iterator[str]:
    if rule.bound is not None and not rule.bound.holds(found.new / found.old):
        new, old = format_metric(found.new), format_metric(found.old)
        yield f"its perplexity is {new}, {found.new / found.old:.3g} times the old one's {old}"


def _labels(rule: GateRule, judged: Judged) -> Iterator[str]:
    if rule.bound is None or not judged.rows:
        return
    if rule.name == "agreement":
        share = judged.agreeing / judged.rows
        if not rule.bound.holds(share):
            yield f"it gives {share:.1%} of {judged.rows} texts the old label, not {rule.bound}"
    elif not rule.bound.holds(judged.change) and not judged.is_chance:
        yield (
            f"its accuracy is {judged.change:+.3f} off the old one's on {judged.rows} texts, which"
            f" is not {rule.bound}"
        )
