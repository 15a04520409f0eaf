"""The `TaskEndpoint` of regressions, and their comparison."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fastapi
import numpy as np
from numpy.typing import NDArray

from serve.tasks.answers import Prediction, Values
from serve.tasks.comparison import ComparedMetric, Comparison
from serve.tasks.endpoint import SendRequest
from serve.tasks.text_classification.endpoint import (
    CHANCE,
    ClassificationEndpoint,
    evaluation_rows,
)
from serve.version import ModelVersion

if TYPE_CHECKING:
    from serve.tasks.text_classification.regression.handler import RegressionHandler

ONLY = "value"
"""Name of the number of a regression with one column."""
Numbers = NDArray[np.float64]


class RegressionEndpoint(ClassificationEndpoint):
    """Serves regressions at `/predict`."""

    title = "Regressions"

    def handler(self) -> "type[RegressionHandler]":
        """Returns the handler's class, whose module imports torch and transformers."""
        from serve.tasks.text_classification.regression.handler import RegressionHandler

        return RegressionHandler

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of a regression."""
        from serve.tasks.text_classification.regression import routes

        return routes.api

    def predictions(self, reply: Any) -> list[Prediction]:
        """The numbers of each input."""
        return [Values(_numbers(row)) for row in reply]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the numbers that both versions give the old version's evaluation rows.

        Returns None for models of pairs and for versions with different columns.
        """
        rows, texts = evaluation_rows(old)
        if not texts or old.labels != new.labels:
            return None, ()
        right = np.array([row.label for row in rows], dtype=np.float64)
        given = [
            np.array(
                [
                    list(each.by_name.values())
                    for each in self.answers(version, texts, send)
                    if isinstance(each, Values)
                ]
            )
            for version in (old, new)
        ]
        return compare(given[0], given[1], right.reshape(given[0].shape)), texts


ENDPOINT = RegressionEndpoint()


def compare(old: Numbers, new: Numbers, right: Numbers) -> Comparison:
    """Compares the numbers of two versions with the right ones, (rows, columns) each.

    The value of `rmse` is the new version's as a multiple of the old one's, over all columns in
    units of their deviation. A difference is chance if that of the squared errors is, by a paired
    test of their mean in its normal approximation.
    """
    spread = right.std(axis=0)
    unit = np.where(spread > 0, spread, 1.0)
    squared = [(((given - right) / unit) ** 2).mean(axis=1) for given in (old, new)]
    before, after = (math.sqrt(float(errors.mean())) for errors in squared)
    difference = squared[1] - squared[0]
    deviation = float(difference.std()) / math.sqrt(len(difference))
    is_chance = abs(float(difference.mean())) <= CHANCE * deviation
    times = after / before if before else (1.0 if not after else math.inf)
    sentence = f"its rmse is {times:.3f} times the old one's on {len(right)} texts"
    return Comparison(f"rmse x{times:.3f}", {"rmse": ComparedMetric(times, sentence, is_chance)})


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = row["values"] if "values" in row else {ONLY: row["value"]}
    return found
