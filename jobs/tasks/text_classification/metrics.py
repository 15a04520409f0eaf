"""Classification metrics from a confusion matrix, exact over any split of the rows.

Rows of the matrix are true classes, columns predicted ones. As in scikit-learn, means over classes
leave out those that no row has and none was given, and an undefined ratio is 0.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]
Ratios = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Precision, recall and F1 of each class, (classes,)."""

    precision: Ratios
    recall: Ratios
    f1: Ratios
    rows: Ratios
    """Rows that have the class."""
    occurs: NDArray[np.bool_]
    """Whether a row has the class or was given it."""


def compute(confusion: Confusion, positive: int | None = None) -> dict[str, float]:
    """Returns every metric of a (classes, classes) confusion matrix.

    `positive` is the class that precision, recall and f1 are of; None for class 1 of two, and for
    the mean over more.
    """
    each = of_classes(confusion)
    chosen = 1 if positive is None and len(confusion) == 2 else positive

    def summary(values: Ratios) -> float:
        return _mean(values[each.occurs]) if chosen is None else float(values[chosen])

    return {
        "accuracy": accuracy(confusion),
        "balanced_accuracy": _mean(each.recall[each.rows > 0]),
        "precision": summary(each.precision),
        "recall": summary(each.recall),
        "f1": summary(each.f1),
        "f1_macro": _mean(each.f1[each.occurs]),
        "f1_weighted": float((each.f1 * each.rows).sum() / max(1.0, each.rows.sum())),
        "mcc": mcc(confusion),
    }


def of_classes(confusion: Confusion) -> ClassScores:
    """Returns precision, recall and F1 of each class."""
    right = np.diag(confusion).astype(float)
    given, wanted = confusion.sum(axis=0).astype(float), confusion.sum(axis=1).astype(float)
    return ClassScores(
        precision=ratio(right, given),
        recall=ratio(right, wanted),
        f1=ratio(2 * right, given + wanted),
        rows=wanted,
        occurs=given + wanted > 0,
    )


def ratio(part: Ratios, whole: Ratios) -> Ratios:
    """Returns the quotients; 0 where the divisor is 0."""
    found: Ratios = np.divide(part, whole, out=np.zeros_like(part, dtype=float), where=whole > 0)
    return found


def accuracy(confusion: Confusion) -> float:
    """Share of rows predicted right."""
    return float(np.trace(confusion) / max(1, confusion.sum()))


def f1(confusion: Confusion) -> float:
    """F1 of class 1 for two classes, else the unweighted mean over classes."""
    return compute(confusion)["f1"]


def mcc(confusion: Confusion) -> float:
    """Matthews correlation coefficient, for any number of classes (Gorodkin, 2004)."""
    table = confusion.astype(float)
    total, right = table.sum(), np.trace(table)
    given, wanted = table.sum(axis=0), table.sum(axis=1)
    spread = math.sqrt((total**2 - given @ given) * (total**2 - wanted @ wanted))
    return float((right * total - given @ wanted) / spread) if spread else 0.0


def _mean(values: Ratios) -> float:
    return float(values.mean()) if len(values) else 0.0
