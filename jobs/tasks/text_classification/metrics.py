"""Classification metrics from a confusion matrix, exact over any split of the rows.

Rows of the matrix are true classes, columns predicted ones.
"""

import math

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]


def compute(confusion: Confusion) -> dict[str, float]:
    """Every metric of a (classes, classes) confusion matrix."""
    return {"accuracy": accuracy(confusion), "f1": f1(confusion), "mcc": mcc(confusion)}


def accuracy(confusion: Confusion) -> float:
    """Share of rows predicted right."""
    return float(np.trace(confusion) / max(1, confusion.sum()))


def f1(confusion: Confusion) -> float:
    """F1 of class 1 for two classes, else the unweighted mean over classes.

    As in scikit-learn, the mean leaves out classes that no row has and none was given.
    """
    right = np.diag(confusion).astype(float)
    wanted_and_given = confusion.sum(axis=0) + confusion.sum(axis=1)
    scores = np.divide(
        2 * right, wanted_and_given, out=np.zeros_like(right), where=wanted_and_given > 0
    )
    occurs = wanted_and_given > 0
    return float(scores[1] if len(scores) == 2 else scores[occurs].mean() if occurs.any() else 0.0)


def mcc(confusion: Confusion) -> float:
    """Matthews correlation coefficient, for any number of classes (Gorodkin, 2004)."""
    table = confusion.astype(float)
    total, right = table.sum(), np.trace(table)
    given, wanted = table.sum(axis=0), table.sum(axis=1)
    spread = math.sqrt((total**2 - given @ given) * (total**2 - wanted @ wanted))
    return float((right * total - given @ wanted) / spread) if spread else 0.0
