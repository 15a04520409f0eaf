"""The comparison of a new model version with the old one, which a rollout's gate evaluates."""

from collections.abc import Mapping
from dataclasses import dataclass

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


def compare_perplexities(old: float, new: float) -> Comparison:
    """Compares the perplexities of two versions on their evaluation rows."""
    ratio, shown = new / old, (format_metric(new), format_metric(old))
    sentence = f"its perplexity is {shown[0]}, {ratio:.3g} times the old one's {shown[1]}"
    summary = f"perplexity {shown[0]} after {shown[1]}"
    return Comparison(summary, {"perplexity": ComparedMetric(ratio, sentence)})
