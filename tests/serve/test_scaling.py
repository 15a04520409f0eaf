"""Replicas follow the demand, wherever it is seen."""

from types import SimpleNamespace

import pytest

from serve.scaling import policy


def context(seen: float, told: dict[str, float] | None) -> SimpleNamespace:
    """What Ray Serve hands over."""
    return SimpleNamespace(
        total_num_requests=seen,
        aggregated_metrics=None if told is None else {"requests": told},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 8.0),
    )


@pytest.mark.parametrize(
    ("seen", "told", "replicas"),
    [
        (0, None, 0),
        (0, {}, 0),
        (1, None, 0.125),
        (0, {"a": 8, "b": 16}, 3),
        (32, {"a": 8}, 4),
    ],
)
def test_demand_over_target(seen: float, told: dict[str, float] | None, replicas: float) -> None:
    assert policy(context(seen, told))[0] == replicas
