"""Metrics of vectors of all evaluation rows: correlations with scores, and ranks of positives."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jobs.tasks.text_classification.ranking import pearson, spearman

Numbers = NDArray[np.floating]
BLOCK = 2**22
"""Similarities that are in memory at once, at about 20 bytes each."""
SMALLEST_NORM = 1e-12


def correlations(one: Numbers, other: Numbers, scores: Numbers) -> dict[str, float]:
    """Returns Spearman's and Pearson's correlation of cosines with scores, and the mean error.

    Args:
        one: Vectors of the first texts, (rows, n).
        other: Vectors of the second texts, (rows, n).
        scores: (rows,), from -1 to 1.
    """
    found = (unit(one).astype(np.float64) * unit(other)).sum(axis=1)
    return {
        "spearman": spearman(found, scores),
        "pearson": pearson(found, scores),
        "loss": float(((found - scores) ** 2).mean()),
    }


def ranking(
    anchors: Numbers, others: Sequence[Numbers], texts: NDArray[np.int64], scale: float
) -> dict[str, float]:
    """Returns how high each anchor ranks its positive, and the loss with all rows in one batch.

    The arguments are those of `ranks_and_losses`.
    """
    ranks, losses = ranks_and_losses(anchors, others, texts, scale)
    return {
        "mrr": float((1 / ranks).mean()),
        "recall_at_1": float((ranks <= 1).mean()),
        "recall_at_10": float((ranks <= 10).mean()),
        "loss": float(losses.mean()),
    }


def ranks_and_losses(
    anchors: Numbers, others: Sequence[Numbers], texts: NDArray[np.int64], scale: float
) -> tuple[Numbers, Numbers]:
    """Returns the rank of each row's positive from 1 on, and its loss, (rows,) each.

    The candidates are the distinct positives and negatives of all rows. Texts that are positives of
    the same anchor in other rows do not count against it. Equal similarities count against the
    positive.

    Args:
        anchors: Vectors, (rows, n).
        others: Vectors of positives, and perhaps of negatives, (rows, n) each.
        texts: The number of each text, (rows, texts): equal texts have the same number.
        scale: Factor of the cosines in the loss.
    """
    pool = _Pool(texts)
    candidates = unit(np.concatenate(others)[pool.places])
    ranks, losses = [], []
    block = max(1, BLOCK // len(candidates))
    for first in range(0, len(anchors), block):
        rows = np.arange(first, min(first + block, len(anchors)))
        similar = unit(anchors[rows]) @ candidates.T
        own = similar[np.arange(len(rows)), pool.positive[rows]]
        is_beside = pool.also_right(rows)
        is_above = ~(similar < own[:, None]) & ~is_beside  # so that NaN counts against it
        ranks.append(is_above.sum(axis=1))
        logits = np.where(is_beside, -np.inf, scale * similar.astype(np.float64))
        losses.append(np.logaddexp.reduce(logits, axis=1) - scale * own)
    return np.concatenate(ranks), np.concatenate(losses)


class _Pool:
    """The distinct texts that anchors are compared with."""

    def __init__(self, texts: NDArray[np.int64]) -> None:
        others = texts[:, 1:].T.ravel()
        numbers, self.places = np.unique(others, return_index=True)
        """Of each candidate among the texts of all roles, one role after the other."""
        self.positive = np.searchsorted(numbers, texts[:, 1])
        """(rows,): the candidate that is the row's positive."""
        self._anchors = texts[:, 0].tolist()
        self._right: dict[int, set[int]] = {}
        for anchor, number in zip(self._anchors, self.positive.tolist(), strict=True):
            self._right.setdefault(anchor, set()).add(number)

    def also_right(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which candidates are other positives of the same anchors, (rows, candidates)."""
        found = np.zeros((len(rows), len(self.places)), dtype=np.bool_)
        for place, row in enumerate(rows.tolist()):
            found[place, list(self._right[self._anchors[row]] - {int(self.positive[row])})] = True
        return found


def unit(vectors: Numbers) -> Numbers:
    """Returns the vectors at length 1."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, SMALLEST_NORM)  # type: ignore[no-any-return]
