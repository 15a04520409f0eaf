"""Learning rates are those of transformers' schedules with the same warm-up."""

from typing import Any

import pytest
import torch
import transformers

from jobs.spec.train import LrScheduleSpec
from jobs.training.engine.learning_rate import rate_at

STEPS, WARMUP, PEAK = 40, 8, 0.01


@pytest.mark.parametrize(
    ("fields", "theirs", "settings"),
    [
        ({"type": "linear"}, "linear", {}),
        ({"type": "cosine"}, "cosine", {}),
        ({"type": "cosine", "floor": 0.2}, "cosine_with_min_lr", {"min_lr_rate": 0.2}),
        ({"type": "constant"}, "constant_with_warmup", {}),
        ({"type": "inverse_sqrt"}, "inverse_sqrt", {}),
        ({"type": "polynomial"}, "polynomial", {"power": 2.0, "lr_end": 0.0}),
        (
            {"type": "polynomial", "power": 3.0, "floor": 0.1},
            "polynomial",
            {"power": 3.0, "lr_end": 0.1 * PEAK},
        ),
        (
            {"type": "linear", "floor": 0.1},
            "polynomial",
            {"power": 1.0, "lr_end": 0.1 * PEAK},
        ),
    ],
)
def test_rates_are_those_of_transformers(
    fields: dict[str, Any], theirs: str, settings: dict[str, Any]
) -> None:
    """Ours start one step further up in warm-up, because a step at a rate of 0 changes nothing."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = transformers.get_scheduler(theirs, optimizer, WARMUP, STEPS, settings)
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    schedule = LrScheduleSpec(warmup_ratio=WARMUP / STEPS, **fields)
    found = [rate_at(step, STEPS, PEAK, schedule) for step in range(STEPS)]
    assert found[WARMUP:] == pytest.approx(expected[WARMUP:], rel=1e-9, abs=1e-12)
    assert found[: WARMUP - 1] == pytest.approx(expected[1:WARMUP], rel=1e-9)


def test_an_inverse_square_root_without_warm_up_starts_at_the_peak() -> None:
    schedule = LrScheduleSpec(type="inverse_sqrt", warmup_ratio=0.0)
    assert rate_at(0, 100, PEAK, schedule) == PEAK
    assert rate_at(10_000, 20_000, PEAK, schedule) == pytest.approx(PEAK / 2**0.5)
