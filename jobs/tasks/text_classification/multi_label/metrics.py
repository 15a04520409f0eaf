"""Metrics of rows with several labels, from sums over rows, as scikit-learn defines them.

A label counts as given where its score is at least its threshold. An undefined ratio is 0.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.tasks.text_classification.metrics import ratio
from jobs.tasks.text_classification.ranking import true_positives

THRESHOLD = 0.5
"""Of the metrics, which must not depend on the rows that they are computed on."""
FEWEST = 5
"""Fewest evaluation rows with a label whose threshold is tuned."""
SUMS = 3
"""Numbers of `sums` before those of the labels: rows, summed F1 of rows, rows that are right."""
Sums = NDArray[np.float64]


def sums(is_given: torch.Tensor, is_true: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns the sums of a batch, (SUMS + 3 * labels,): those of rows, then those of each label.

    `is_given` and `is_true` are (rows, labels); `counts`, (rows,), are 0 for filler rows. The sums
    of labels are right, given and true rows.
    """
    given, true, weights = is_given.double(), is_true.double(), counts.double()
    right = given * true
    both = given.sum(dim=1) + true.sum(dim=1)
    f1 = torch.where(both > 0, 2 * right.sum(dim=1) / both.clamp(min=1), torch.zeros_like(both))
    is_exact = (is_given == is_true).all(dim=1).double()
    of_rows = torch.stack([weights.sum(), (f1 * weights).sum(), (is_exact * weights).sum()])
    of_labels = torch.stack([right, given, true]) * weights[None, :, None]
    return torch.cat([of_rows, of_labels.sum(dim=1).flatten()])


def compute(totals: Sums) -> dict[str, float]:
    """Returns every metric of the sums of all rows."""
    rows, row_f1, exact = totals[:SUMS]
    right, given, true = totals[SUMS:].reshape(3, -1)
    return {
        "f1_micro": float(2 * right.sum() / max(1.0, given.sum() + true.sum())),
        "f1_macro": float(ratio(2 * right, given + true).mean()),
        "f1_samples": float(row_f1 / max(1.0, rows)),
        "exact_match": float(exact / max(1.0, rows)),
    }


def best_thresholds(scores: NDArray[np.float32], is_true: NDArray[np.bool_]) -> tuple[float, ...]:
    """Returns the threshold of each label with the highest F1 on these rows, (rows, labels) both.

    Labels of fewer than FEWEST rows, and those that no threshold serves better, keep THRESHOLD.
    """
    columns = range(scores.shape[1])
    return tuple(_best_threshold(scores[:, label], is_true[:, label]) for label in columns)


def _best_threshold(scores: NDArray[np.float32], is_true: NDArray[np.bool_]) -> float:
    rows = int(is_true.sum())
    if rows < FEWEST:
        return THRESHOLD
    found, given = true_positives(is_true, scores)
    f1 = 2 * found / (given + rows)
    best = int(f1.argmax())
    if f1[best] <= f1_of(scores >= THRESHOLD, is_true):
        return THRESHOLD
    distinct = np.unique(scores.astype(np.float64))[::-1]
    below = distinct[best + 1] if best + 1 < len(distinct) else 0.0
    return float((distinct[best] + below) / 2)


def f1_of(is_given: NDArray[np.bool_], is_true: NDArray[np.bool_]) -> float:
    """Returns the F1 of one label, (rows,) both."""
    both = int(is_given.sum()) + int(is_true.sum())
    return 2 * int((is_given & is_true).sum()) / both if both else 0.0


def names_over(row: Sequence[float], thresholds: Sequence[float]) -> list[int]:
    """Returns the indices of the labels that reach their threshold."""
    return [
        n for n, (score, least) in enumerate(zip(row, thresholds, strict=True)) if score >= least
    ]
