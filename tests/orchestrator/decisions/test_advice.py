"""Advice follows from what was measured, and is silent when nothing stands out."""

from dataclasses import replace

import pytest

from jobs.training.events import Metered
from orchestrator.decisions.advice import advise
from orchestrator.decisions.select import Winner
from tests.builders import any_of, inventory, job, measurement, plan_of, speed

SPEC = job(train__micro_batch_size=8, train__precision="fp16", resources__any_of=any_of("T4:1"))
PLAN = plan_of(SPEC, inventory(T4=1))
WINNER = Winner(PLAN.candidates[0], {}, None, "the only one")


def advice(speed: Metered, **fields: object) -> tuple[str, ...]:
    """For a probe that found this speed."""
    return advise(PLAN, WINNER, measurement(WINNER.candidate.id, speed=speed, **fields))


CALM = speed(peak_memory_gib=12.0, mode="captured")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data_wait_share": 0.38}, "wait for data 38%"),
        ({"padding_share": 0.4}, "40% of the tokens are padding"),
        ({"communication_share": 0.3}, "30% of a step on exchanging"),
        ({"mode": "eager: the data do not fit on the device"}, "not captured"),
        ({"peak_memory_gib": 4.0}, "75% of the memory stays free while a step has 4 passes"),
        ({"others_cpu_share": 0.5}, "other load disturbed"),
    ],
)
def test_what_stands_out_is_told_with_what_to_do(fields: dict[str, object], words: str) -> None:
    found = advice(replace(CALM, **fields))
    assert len(found) == 1
    assert words in found[0]


def test_a_good_run_needs_no_advice() -> None:
    assert advice(CALM) == ()
    assert advise(PLAN, WINNER, None) == ()
