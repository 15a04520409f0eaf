"""From probed steps to the time and cost of the full run."""

import pytest

from jobs.training.events import OutOfMemory, Probed
from orchestrator.decisions import predict
from tests.builders import any_of, inventory, job, plan_of, sweep

SPEC = job(
    train__epochs=2,
    train__precision="fp16",
    train__micro_batch_size=16,
    resources__any_of=any_of("T4:1"),
    prices={"T4": 3.6},
    sweep=sweep({"train.micro_batch_size": [16, 32]}),
)
PLAN = plan_of(SPEC, inventory(T4=1))


def probed(candidate: str, *step_seconds: float, setup_s: float = 4.0) -> Probed:
    """A probe of 320 training and 100 evaluation rows."""
    return Probed(candidate, step_seconds, 50.0, 25.0, 2.0, 320, 100, setup_s, 1.0)


def test_the_full_run_is_start_setup_steps_and_evaluations() -> None:
    measured = predict.summarise(probed("T4:1/16/fp16", 0.5, 0.5, 0.5), start_s=10)
    found = predict.predict_all(SPEC, PLAN.candidates, (measured,))[0]
    assert found.steps == 20
    assert found.time_s.mean == pytest.approx(10 + 4 + 20 * 0.5 + 100 / 50 + 100 / 25)
    assert found.cost_usd is not None
    assert found.cost_usd.mean == pytest.approx(found.time_s.mean * 0.001)


def test_stalls_are_billed_and_widen_the_interval() -> None:
    calm = predict.summarise(probed("a", *[0.5] * 8), 0).step_s
    stalling = predict.summarise(probed("a", *[0.5] * 7, 2.5), 0).step_s
    assert calm is not None
    assert stalling is not None
    assert stalling.mean == pytest.approx(0.75)
    assert stalling.high - stalling.low > calm.high - calm.low > 0


def test_setup_is_that_of_the_first_candidate_of_a_group() -> None:
    first = predict.summarise(probed("T4:1/16/fp16", 0.5, 0.5, setup_s=4.0), 10)
    second = predict.summarise(probed("T4:1/32/fp16", 0.5, 0.5, setup_s=0.1), 10)
    times = [p.time_s.mean for p in predict.predict_all(SPEC, PLAN.candidates, (first, second))]
    assert times[0] == times[1]


def test_running_out_of_memory_is_a_result_without_a_prediction() -> None:
    measured = predict.summarise(OutOfMemory("T4:1/32/fp16", "tried to allocate"), 10)
    assert measured.failure == "tried to allocate"
    assert predict.predict_all(SPEC, PLAN.candidates, (measured,)) == ()
