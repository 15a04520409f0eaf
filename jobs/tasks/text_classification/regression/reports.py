"""What a run's report shows of a regression: numbers, curves, and the worst mistakes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jobs.tasks.text_classification import ranking
from jobs.tasks.text_classification.reports import Scores, TextOf, shortened, worst_first
from jobs.training.quality import Cell, Curve, Point, QualityReport, Table

PARTS = 10
"""Points of a curve: rows in the order of their predicted number, in parts of equal size."""
Numbers = NDArray[np.float64]


def of_numbers(
    scores: Scores, labels: NDArray[np.generic], names: Sequence[str], text_of: TextOf
) -> QualityReport:
    """Returns the report on predicted and true numbers, (rows, outputs) both."""
    predicted, true = scores.astype(np.float64), labels.astype(np.float64)
    columns = range(len(names))
    return QualityReport(
        tables=(
            Table(
                "Numbers",
                ("column", "rows", "mean", "deviation", "rmse", "mae", "pearson", "spearman"),
                tuple(_row(names[n], predicted[:, n], true[:, n]) for n in columns),
            ),
            _mistakes(predicted, true, names, text_of),
        ),
        curves=tuple(_curve(names[n], predicted[:, n], true[:, n]) for n in columns),
    )


def _row(name: str, predicted: Numbers, true: Numbers) -> tuple[Cell, ...]:
    error = predicted - true
    return (
        name,
        len(true),
        float(true.mean()),
        float(true.std()),
        float(np.sqrt((error**2).mean())),
        float(np.abs(error).mean()),
        ranking.pearson(predicted, true),
        ranking.spearman(predicted, true),
    )


def _curve(name: str, predicted: Numbers, true: Numbers) -> Curve:
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(PARTS, len(true)))
    points = tuple(
        Point(float(predicted[rows].mean()), float(true[rows].mean()), len(rows)) for rows in parts
    )
    return Curve(f"{name}: true over predicted", "mean predicted", "mean true", points)


def _mistakes(predicted: Numbers, true: Numbers, names: Sequence[str], text_of: TextOf) -> Table:
    spread = true.std(axis=0)
    losses = (((predicted - true) / np.where(spread > 0, spread, 1.0)) ** 2).mean(axis=1)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            shortened(text_of(row)),
            *(float(n) for pair in zip(true[row], predicted[row], strict=True) for n in pair),
        )
        for row in worst_first(losses, is_wrong=losses > 0)
    )
    columns = ("text", *(title for name in names for title in (name, "predicted")))
    return Table("Worst mistakes", columns, rows)
