"""The `TaskEndpoint` of classifiers with several labels, and their comparison."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import fastapi
import numpy as np
from numpy.typing import NDArray

from serve.tasks.answers import Label, Prediction
from serve.tasks.comparison import ComparedMetric, Comparison
from serve.tasks.endpoint import SendRequest
from serve.tasks.text_classification.endpoint import (
    ClassificationEndpoint,
    evaluation_rows,
)
from serve.version import ModelVersion

if TYPE_CHECKING:
    from serve.tasks.text_classification.multi_label.handler import MultiLabelHandler

RESAMPLES, SEED, SURE = 1000, 0, (2.5, 97.5)
"""Samples of the rows with replacement, their seed, and the percentiles of a 95 % interval."""
Sets = NDArray[np.bool_]


class MultiLabelEndpoint(ClassificationEndpoint):
    """Serves classifiers with several labels at `/predict`."""

    title = "Classifiers with several labels"

    def handler(self) -> "type[MultiLabelHandler]":
        """Returns the handler's class, whose module imports torch and transformers."""
        from serve.tasks.text_classification.multi_label.handler import MultiLabelHandler

        return MultiLabelHandler

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of a classifier with several labels."""
        from serve.tasks.text_classification.multi_label import routes

        return routes.api

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the labels that both versions give the old version's evaluation rows.

        Returns None for models of pairs and for versions with different labels.
        """
        rows, texts = evaluation_rows(old)
        if not texts or old.labels != new.labels:
            return None, ()
        right = np.array([row.label for row in rows]) > 0
        given = [_sets(self.answers(version, texts, send), old.labels) for version in (old, new)]
        return compare(given[0], given[1], right), texts


ENDPOINT = MultiLabelEndpoint()


def compare(old: Sets, new: Sets, right: Sets) -> Comparison:
    """Compares the labels of two versions, given the right labels, (rows, labels) each.

    A change of f1_micro is chance if a bootstrap over the rows gives both signs. Source: Efron and
    Tibshirani, An Introduction to the Bootstrap (1993).
    """
    parts = [_parts(given, right) for given in (old, new)]
    change = _f1_micro(parts[1].sum(axis=0)) - _f1_micro(parts[0].sum(axis=0))
    draw = np.random.default_rng(SEED).integers(len(right), size=(RESAMPLES, len(right)))
    drawn = [_f1_micro(part[draw].sum(axis=1)) for part in parts]
    low, high = np.percentile(drawn[1] - drawn[0], SURE)
    share = float((old == new).all(axis=1).mean())
    metrics = {
        "f1_micro": ComparedMetric(
            float(change),
            f"its f1_micro changes by {change:+.3f} on {len(right)} texts",
            bool(low <= 0 <= high),
        ),
        "agreement": ComparedMetric(
            share, f"it gives {share:.1%} of {len(right)} texts the old version's labels"
        ),
    }
    return Comparison(f"f1_micro {change:+.3f}", metrics)


def _sets(rows: Sequence[Prediction], labels: Sequence[str]) -> Sets:
    found = [row for row in rows if isinstance(row, tuple)]
    names = [{each.label for each in row if isinstance(each, Label)} for row in found]
    return np.array([[label in row for label in labels] for row in names], dtype=bool)


def _parts(given: Sets, right: Sets) -> NDArray[np.float64]:
    """Right labels, and given and wanted labels, of each row, (rows, 2)."""
    both = given.sum(axis=1) + right.sum(axis=1)
    return np.stack([(given & right).sum(axis=1), both], axis=1).astype(float)


def _f1_micro(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = 2 * parts[..., 0] / np.maximum(parts[..., 1], 1)
    return found
