"""The comparison of a new model version with the old one, which a rollout's gate evaluates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.spec.harness import MARK
from jobs.spec.quantities import format_metric


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One metric of the comparison of a new version with the old one."""

    value: float
    """The gate compares it with the rule's bound."""
    sentence: str
    """The reason that the gate gives if the bound does not hold."""
    is_chance: bool = False
    """True if the difference is not statistically significant; the gate then ignores it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two model versions on evaluation rows."""

    summary: str
    metrics: Mapping[str, ComparedMetric]
    """By the name of the gate's rule that evaluates the metric."""


def compare_harness(
    old: Mapping[str, float], new: Mapping[str, float]
) -> dict[str, ComparedMetric]:
    """Compares the metrics of the harness that an old version has with those of a new one.

    The value is the change; it is not a number, which keeps no bound, if the new version has none.
    """
    found = {}
    for name, before in old.items():
        if MARK not in name:
            continue
        after = new.get(name, math.nan)
        shown = format_metric(before)
        sentence = f"its {name} is {format_metric(after)}, and the old one's {shown}"
        if name not in new:
            sentence = f"it has no {name}, and the old one's is {shown}"
        found[name] = ComparedMetric(after - before, sentence)
    return found


def compare_perplexities(old: float, new: float) -> Comparison:
    """Compares the perplexities of two versions on their evaluation rows."""
    ratio, shown = new / old, (format_metric(new), format_metric(old))
    sentence = f"its perplexity is {shown[0]}, {ratio:.3g} times the old one's {shown[1]}"
    summary = f"perplexity {shown[0]} after {shown[1]}"
    return Comparison(summary, {"perplexity": ComparedMetric(ratio, sentence)})
