"""Metrics from a confusion matrix, against values worked out by hand."""

import numpy as np
import pytest
import sklearn.metrics

from jobs.spec.train import LrScheduleSpec
from jobs.tasks.text_classification import metrics
from jobs.training.engine.learning_rate import rate_at

BINARY = np.array([[50, 10], [5, 35]])
THREE = np.array([[5, 0, 0], [1, 3, 1], [0, 2, 4]])


def test_binary_metrics() -> None:
    assert metrics.accuracy(BINARY) == pytest.approx(0.85)
    assert metrics.f1(BINARY) == pytest.approx(2 * 35 / (2 * 35 + 10 + 5))
    assert metrics.mcc(BINARY) == pytest.approx((50 * 35 - 10 * 5) / np.sqrt(45.0 * 40 * 60 * 55))


def test_f1_of_several_classes_is_their_mean() -> None:
    each = [2 * 5 / (6 + 5), 2 * 3 / (5 + 5), 2 * 4 / (5 + 6)]
    assert metrics.f1(THREE) == pytest.approx(np.mean(each))


def test_metrics_of_a_constant_prediction_are_defined() -> None:
    constant = np.array([[4, 0], [6, 0]])
    assert metrics.compute(constant) == {
        "accuracy": 0.4,
        "balanced_accuracy": 0.5,
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "f1_macro": pytest.approx(2 / 7),
        "f1_weighted": pytest.approx(0.4 * 4 / 7),
        "mcc": 0.0,
    }


@pytest.mark.parametrize(
    ("schedule", "step", "rate"),
    [
        (LrScheduleSpec(type="linear", warmup_ratio=0.2), 0, 0.5),
        (LrScheduleSpec(type="linear", warmup_ratio=0.2), 1, 1.0),
        (LrScheduleSpec(type="linear", warmup_ratio=0.2), 6, 0.5),
        (LrScheduleSpec(type="linear", warmup_ratio=0.0), 0, 1.0),
        (LrScheduleSpec(type="cosine", warmup_ratio=0.2), 6, 0.5),
        (LrScheduleSpec(type="constant", warmup_ratio=0.0), 9, 1.0),
    ],
)
def test_learning_rate_rises_then_follows_its_shape(
    schedule: LrScheduleSpec, step: int, rate: float
) -> None:
    assert rate_at(step, 10, 1.0, schedule) == pytest.approx(rate)


@pytest.mark.parametrize("seed", range(4))
def test_f1_is_that_of_scikit_learn_where_classes_are_absent(seed: int) -> None:
    draw = np.random.default_rng(seed)
    true, given = draw.choice([0, 2, 3], 40), draw.choice([0, 2], 40)
    table = np.zeros((5, 5), np.int64)
    np.add.at(table, (true, given), 1)
    expected = sklearn.metrics.f1_score(true, given, average="macro")
    assert metrics.f1(table) == pytest.approx(expected)
    perfect = np.diag([3, 0, 4, 0, 0])
    assert metrics.f1(perfect) == 1.0
