"""What a run's report shows of a classifier: confusion, labels, calibration, worst mistakes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.tasks.text_classification import calibration, metrics
from jobs.training.quality import Cell, QualityReport, Table

MOST_CLASSES = 20
"""Most labels of a confusion matrix that is shown; beyond it, the pairs that are mixed up most."""
WORST = 20
"""Mistakes, or pairs of labels, that are listed."""
CHARACTERS = 300
"""Most characters of a text that is listed."""
TextOf = Callable[[int], str]
Scores = NDArray[np.float32]


def of_single_labels(
    scores: Scores, labels: NDArray[np.generic], names: Sequence[str], text_of: TextOf
) -> QualityReport:
    """Returns the report on rows with one label each; `scores` are probabilities."""
    given, true = scores.argmax(axis=1), labels.astype(np.int64)
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (true, given), 1)
    totals = _calibration(scores.max(axis=1), given == true)
    return QualityReport(
        tables=(
            _confusion(confusion, names),
            _labels(confusion, names),
            _mistakes(scores, true, names, text_of),
        ),
        curves=(calibration.curve("Calibration of the given label", totals),),
    )


def worst_first(losses: NDArray[np.floating], *, is_wrong: NDArray[np.bool_]) -> list[int]:
    """Returns the wrong rows with the largest losses, (rows,) both, the worst first."""
    order = np.argsort(-losses, kind="stable")
    return [int(row) for row in order if is_wrong[row]][:WORST]


def shortened(text: str) -> str:
    """Returns a text with at most CHARACTERS characters."""
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"


def _confusion(confusion: metrics.Confusion, names: Sequence[str]) -> Table:
    if len(names) <= MOST_CLASSES:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (name, *(int(n) for n in row)) for name, row in zip(names, confusion, strict=True)
        )
        columns = ("label, and what was given", *names)
        return Table("Confusion matrix", columns, rows, is_matrix=True)
    mixed_up = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-mixed_up, axis=None, kind="stable")[:WORST]
    pairs = [divmod(int(place), len(names)) for place in order]
    listed = tuple((names[i], names[j], int(mixed_up[i, j])) for i, j in pairs if mixed_up[i, j])
    return Table("Labels that are mixed up most", ("label", "given", "rows"), listed)


def _labels(confusion: metrics.Confusion, names: Sequence[str]) -> Table:
    each = metrics.of_classes(confusion)
    columns = zip(names, each.rows, each.precision, each.recall, each.f1, strict=True)
    rows = tuple((name, int(n), float(p), float(r), float(f)) for name, n, p, r, f in columns)
    return Table("Labels", ("label", "rows", "precision", "recall", "f1"), rows)


def _mistakes(
    scores: Scores, true: NDArray[np.int64], names: Sequence[str], text_of: TextOf
) -> Table:
    given = scores.argmax(axis=1)
    of_true = scores[np.arange(len(true)), true]
    rows = tuple(
        (
            shortened(text_of(row)),
            names[true[row]],
            float(of_true[row]),
            names[given[row]],
            float(scores[row, given[row]]),
        )
        for row in worst_first(-of_true, is_wrong=given != true)
    )
    columns = ("text", "label", "its score", "given", "its score")
    return Table("Worst mistakes", columns, rows)


def _calibration(
    probabilities: NDArray[np.floating], is_right: NDArray[np.bool_]
) -> NDArray[np.float64]:
    counts = torch.ones(len(probabilities))
    given = torch.from_numpy(np.ascontiguousarray(probabilities))
    return calibration.sums(given, torch.from_numpy(is_right), counts).numpy()
