"""Metrics of an order of rows: they need the scores of all rows, and no threshold."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
CHANCE = 0.5
"""ROC AUC of an order that says nothing."""


def average_ranks(values: ArrayLike) -> Numbers:
    """Returns the rank of each value from 1 on, (n,); equal values share the mean of theirs."""
    _, group, sizes = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    mean_rank = last - (sizes - 1) / 2
    ranks: Numbers = mean_rank[group]
    return ranks


def roc_auc(is_positive: ArrayLike, scores: ArrayLike) -> float:
    """Returns the chance that a positive row has a higher score than a negative one.

    It is 0.5 where all rows are positive, or none is. Source: Mann and Whitney (1947).
    """
    chosen = np.asarray(is_positive, dtype=bool)
    positive, negative = int(chosen.sum()), int((~chosen).sum())
    if not positive or not negative:
        return CHANCE
    ranks = average_ranks(scores)
    return float((ranks[chosen].sum() - positive * (positive + 1) / 2) / (positive * negative))


def mean_roc_auc(is_positive: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    """Returns the mean ROC AUC of the columns, (rows, n) both, that have rows of both kinds."""
    share = is_positive.mean(axis=0)
    columns = np.flatnonzero((share > 0) & (share < 1))
    if not len(columns):
        return CHANCE
    return float(np.mean([roc_auc(is_positive[:, n], scores[:, n]) for n in columns]))


def average_precision(is_positive: ArrayLike, scores: ArrayLike) -> float:
    """Returns the mean precision over the increases of recall, by falling thresholds.

    It is 0 where no row is positive, as in scikit-learn.
    """
    found, given = true_positives(is_positive, scores)
    if not len(found) or not found[-1]:
        return 0.0
    gained = np.diff(found, prepend=0.0) / found[-1]
    return float((gained * found / given).sum())


def true_positives(is_positive: ArrayLike, scores: ArrayLike) -> tuple[Numbers, Numbers]:
    """Returns positive rows and all rows at or above each distinct score, from the highest on."""
    values = np.asarray(scores)
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(ordered) else order
    found: Numbers = np.cumsum(np.asarray(is_positive, dtype=np.float64)[order])[last]
    given: Numbers = (last + 1).astype(np.float64)
    return found, given


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """Returns the correlation of two lists of numbers; 0 where one of them is constant."""
    first, second = (np.asarray(values, dtype=np.float64) for values in (one, other))
    first, second = first - first.mean(), second - second.mean()
    spread = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / spread) if spread else 0.0


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Returns the correlation of the ranks of two lists of numbers."""
    return pearson(average_ranks(one), average_ranks(other))
