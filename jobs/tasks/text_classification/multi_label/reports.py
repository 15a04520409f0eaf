"""What a run's report shows of a model with several labels, and its published thresholds."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.tasks.text_classification import calibration, ranking
from jobs.tasks.text_classification.multi_label import metrics
from jobs.tasks.text_classification.reports import Scores, TextOf, shortened, worst_first
from jobs.training.quality import QualityReport, Table

LEAST = 1e-7
"""Least probability in a logarithm."""
Sets = NDArray[np.bool_]


def of_label_sets(
    scores: Scores, is_true: Sets, names: Sequence[str], text_of: TextOf
) -> QualityReport:
    """Returns the report on rows with any number of labels, (rows, labels) both."""
    thresholds = metrics.best_thresholds(scores, is_true)
    every = torch.ones(scores.size)
    totals = calibration.sums(
        torch.from_numpy(scores.ravel()), torch.from_numpy(is_true.ravel()), every
    ).numpy()
    return QualityReport(
        tables=(
            _overall(scores, is_true, thresholds),
            _labels(scores, is_true, names, thresholds),
            _mistakes(scores, is_true, names, thresholds, text_of),
        ),
        curves=(calibration.curve("Calibration of all labels", totals),),
        thresholds=dict(zip(names, thresholds, strict=True)),
    )


def _overall(scores: Scores, is_true: Sets, thresholds: Sequence[float]) -> Table:
    """Metrics with the threshold of training, and with those that were chosen on these rows."""
    found = []
    for limits in (metrics.THRESHOLD, np.array(thresholds)):
        given = torch.from_numpy(scores >= limits)
        counted = metrics.sums(given, torch.from_numpy(is_true), torch.ones(len(scores)))
        found.append(metrics.compute(counted.numpy()))
    rows = tuple((name, found[0][name], found[1][name]) for name in found[0])
    columns = ("metric", f"threshold {metrics.THRESHOLD:g}", "tuned on these rows")
    return Table("Thresholds", columns, rows)


def _labels(
    scores: Scores, is_true: Sets, names: Sequence[str], thresholds: Sequence[float]
) -> Table:
    rows = []
    for number, (name, threshold) in enumerate(zip(names, thresholds, strict=True)):
        own, true = scores[:, number], is_true[:, number]
        given = own >= threshold
        right, have = int((given & true).sum()), int(true.sum())
        rows.append(
            (
                name,
                have,
                ranking.average_precision(true, own),
                metrics.f1_of(own >= metrics.THRESHOLD, true),
                float(threshold),
                right / max(1, int(given.sum())),
                right / max(1, have),
                metrics.f1_of(given, true),
            )
        )
    columns = (
        *("label", "rows", "average precision", f"f1 at {metrics.THRESHOLD:g}"),
        *("threshold", "precision", "recall", "f1"),
    )
    return Table("Labels", columns, tuple(rows))


def _mistakes(
    scores: Scores,
    is_true: Sets,
    names: Sequence[str],
    thresholds: Sequence[float],
    text_of: TextOf,
) -> Table:
    given = scores >= np.array(thresholds)
    of_truth = np.where(is_true, scores, 1 - scores)
    losses = -np.log(np.maximum(of_truth, LEAST)).sum(axis=1)

    def shown(row: Sets) -> str:
        return ", ".join(names[int(number)] for number in np.flatnonzero(row)) or "none"

    rows = tuple(
        (shortened(text_of(row)), shown(is_true[row]), shown(given[row]), float(losses[row]))
        for row in worst_first(losses, is_wrong=(given != is_true).any(axis=1))
    )
    return Table("Worst mistakes", ("text", "labels", "given", "loss"), rows)
