"""Which placements are probed beside trials."""

from typing import Any

import pytest

from orchestrator.decisions import overlap
from tests.builders import any_of, inventory, job, plan_of, prediction, sweep

LR = {"train.optimizer.lr": [1e-3, 3e-3]}
NODES = inventory(A100_80GB=2, L40S=1, T4=1)
CHEAPEST, CHEAP, DEAR, PAIR = "L40S:1", "T4:1", "A100-80GB:1", "A100-80GB:2"
"""In the order in which they are probed; the last two share a node."""


def beside(
    probed: str,
    *left: str,
    space: dict[str, Any] = LR,
    full: str = "",
    fails: bool = False,
    is_lost: bool = False,
) -> list[str]:
    """Names of what is probed beside trials after one placement; a full one has no room.

    A placement that is lost cannot be had for the trials.
    """
    tries = sweep(space, trials=2)
    asked = any_of(PAIR, DEAR, CHEAP, CHEAPEST)
    spec = job(train__precision="fp16", resources__any_of=asked, sweep=tries)
    plan = plan_of(spec, NODES)
    own = [each.id for each in plan.candidates if each.placement.name == probed and not fails]
    options = [placement for placement in plan.placements if placement.name in left]
    found = overlap.beside_trials(
        spec,
        plan,
        [prediction(name, time_s=100, cost_usd=1) for name in own],
        options,
        lambda placement: placement.name != full,
        lambda placement: not is_lost,
    )
    return sorted(placement.name for placement in found)


def test_placements_on_other_nodes_with_room_are_probed_beside_trials() -> None:
    assert beside(CHEAPEST, CHEAP, DEAR, PAIR) == [DEAR, PAIR, CHEAP]
    assert beside(CHEAPEST, CHEAP, DEAR, PAIR, full=DEAR) == [PAIR, CHEAP]
    assert beside(DEAR, PAIR) == []


def test_trials_wait_for_a_placement_that_is_expected_to_be_cheaper() -> None:
    assert beside(CHEAP, DEAR, PAIR) == [DEAR, PAIR]
    assert beside(CHEAP, CHEAPEST, DEAR, PAIR) == []


@pytest.mark.parametrize(
    "space",
    [
        {"train.micro_batch_size": [8, 16]},  # nothing to try
        {**LR, "train.precision": ["fp16", "fp32"]},  # whose precision follows from all probes
    ],
)
def test_trials_that_are_not_decided_wait_for_all_probes(space: dict[str, Any]) -> None:
    assert beside(CHEAPEST, CHEAP, space=space) == []


def test_trials_wait_while_nothing_has_a_prediction_or_their_devices_are_lost() -> None:
    assert beside(CHEAPEST, CHEAP, fails=True) == []
    assert beside(CHEAPEST, CHEAP, is_lost=True) == []


def test_trials_wait_where_compiling_may_make_them_cheaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlap.compiling, "to_probe", lambda *_: ("a compiled candidate",))
    assert beside(CHEAPEST, CHEAP) == []
