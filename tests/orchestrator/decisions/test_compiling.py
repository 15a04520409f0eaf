"""Whether steps are compiled: what a plan says, what is probed, and what a measurement decides."""

from dataclasses import replace

import pytest

from jobs.spec import JobSpec
from jobs.training.config import TrainingConfig
from jobs.training.model.shape import ModelShape
from orchestrator.decisions import compiling, predict, select
from orchestrator.decisions.measurement import NOT_COMPILABLE, Launch, Measurement, Prediction
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.decisions.resolve import training_config
from orchestrator.decisions.select import Winner
from tests.builders import any_of, inventory, job, measurement, overheads, plan_of, speed, sweep

PLAIN, COMPILED = "A100-80GB:1/16/bf16", "A100-80GB:1/16/bf16/compiled"
CHEAP, TWO = "T4:1/16/fp16", "A100-80GB:2/16/bf16"
GATED = ModelShape(16, 2048, 8192, 32_000, 0, is_gated=True)
LONG = 100_000
"""Steps that take 10,000 s at 0.1 s each."""


def job_of(*names: str, compile: bool | str = "auto", **fields: object) -> JobSpec:
    return job(
        train__micro_batch_size=16,
        train__compile=compile,
        resources__any_of=any_of(*names),
        sweep=fields.pop("sweep", sweep({"train.micro_batch_size": [16]})),
        **fields,
    )


def plan_for(spec: JobSpec) -> Plan:
    return plan_of(spec, inventory(A100_80GB=2, T4=1, cpu=2))


def timed(candidate: str, step_s: float, steps: int = LONG, capture_s: float = 2.0) -> Measurement:
    own, found = overheads(capture_s=capture_s), speed(capture_s=capture_s)
    return measurement(candidate, step_s, steps=steps, overheads=own, speed=found)


def predicted(spec: JobSpec, plan: Plan, *measured: Measurement) -> tuple[Prediction, ...]:
    names = {m.candidate.partition("/")[0] for m in measured}
    launches = [Launch(name, 10.0, 1.0) for name in names]
    tried = plan.trying({m.candidate for m in measured})
    return predict.predict_all(spec, tried.candidates, measured, launches)


def probed(spec: JobSpec, *measured: Measurement) -> list[str]:
    plan = plan_for(spec)
    found = predicted(spec, plan, *measured)
    return [candidate.id for candidate in compiling.to_probe(plan.compiled, found)]


def chosen(spec: JobSpec, *measured: Measurement) -> Winner:
    plan = plan_for(spec).trying({m.candidate for m in measured})
    found = predicted(spec, plan, *measured)
    winner = select.select(spec, plan, found, ())
    why = compiling.verdict(spec, winner.candidate, measured, found)
    return replace(winner, compiling=why)


def config(spec: JobSpec, winner: Winner) -> TrainingConfig:
    return training_config(spec, winner.candidate.execution, winner.params)


def test_a_plan_says_how_compiling_is_decided() -> None:
    plan = plan_for(job_of("A100-80GB:1", "A100-80GB:2", "cpu:1"))
    assert [candidate.id for candidate in plan.compiled] == [COMPILED]
    assert plan.remarks == (
        "a probe decides about compiling: the fastest candidate of A100-80GB:1 is measured compiled"
        " too if all its steps take more than 10 min",
        "steps on A100-80GB:2 are not compiled: that is not yet reliable on several GPUs;"
        " train.compile: true compiles them",
    )


def test_only_auto_asks_a_probe() -> None:
    for given, says in ((True, 0), (False, 0), ("auto", 1)):
        plan = plan_for(job_of("A100-80GB:1", "cpu:1", compile=given))
        assert (len(plan.compiled), len(plan.remarks)) == (says, says)
        assert plan_for(job_of("cpu:1", compile=given)).remarks == ()


def test_without_a_sweep_nothing_is_compiled_and_the_plan_says_so() -> None:
    spec = job_of("A100-80GB:1", sweep=None)
    plan = plan_for(spec)
    why = "not compiled: only the probes of a sweep measure whether that pays"
    assert plan.compiled == ()
    assert plan.remarks == (f"steps are {why}; train.compile: true compiles them",)
    assert compiling.verdict(spec, plan.candidates[0], (), ()) == why


def test_a_compiled_candidate_needs_the_memory_of_compiled_steps() -> None:
    adapter = {"type": "lora", "r": 8, "dropout": 0.0}
    spec = job_of("A100-80GB:1", model__adapter=adapter)
    plan = make_plan(spec, inventory(A100_80GB=1), GATED)
    (plain,), (fast,) = plan.candidates, plan.compiled
    assert plain.memory
    assert fast.memory
    assert fast.memory.expected_gib < plain.memory.expected_gib
    always = job_of("A100-80GB:1", model__adapter=adapter, compile=True)
    forced = make_plan(always, inventory(A100_80GB=1), GATED)
    assert [candidate.memory for candidate in forced.candidates] == [fast.memory]


def test_a_long_run_is_probed_compiled_and_a_short_one_is_not() -> None:
    spec = job_of("A100-80GB:1")
    assert probed(spec, timed(PLAIN, 0.1)) == [COMPILED]
    assert probed(spec, timed(PLAIN, 0.1, steps=5_990)) == []
    assert probed(spec, timed(PLAIN, 0.1, steps=6_010)) == [COMPILED]
    assert chosen(spec, timed(PLAIN, 0.1, steps=2_400)).compiling == (
        "not compiled: all steps take 4 min, and it may pay from 10 min"
    )


def test_the_fastest_of_each_placement_is_probed_if_it_may_become_the_best() -> None:
    space = sweep({"train.micro_batch_size": [8, 16]})
    prices = {"A100-80GB": 4.0, "T4": 1.0}
    spec = job_of("A100-80GB:1", "T4:1", sweep=space, prices=prices)
    slow, fast = timed("A100-80GB:1/8/bf16", 0.15), timed(PLAIN, 0.1)
    cheap, fast_t4 = timed(CHEAP, 0.35), timed(CHEAP, 0.19)
    dear = timed(CHEAP, 2.0)
    assert probed(spec, slow, fast, cheap) == [COMPILED, f"{CHEAP}/compiled"]
    assert probed(spec, slow, fast, fast_t4) == [COMPILED, f"{CHEAP}/compiled"]
    assert probed(spec, slow, fast, dear) == [COMPILED]


def test_several_workers_are_never_probed_compiled() -> None:
    space = sweep({"train.micro_batch_size": [16]}, objective={"minimize": "time"})
    spec = job_of("A100-80GB:1", "A100-80GB:2", sweep=space)
    assert probed(spec, timed(PLAIN, 0.1), timed(TWO, 0.06)) == [COMPILED]
    winner = chosen(spec, timed(PLAIN, 0.1), timed(TWO, 0.02))
    assert winner.candidate.id == TWO
    assert winner.compiling == "not compiled: that is not yet reliable on several GPUs"
    assert not config(spec, winner).compile
    forced = job_of("A100-80GB:2", compile=True)
    assert config(forced, select.select_unmeasured(plan_for(forced))).compile


def test_a_gain_is_taken_and_said() -> None:
    spec = job_of("A100-80GB:1")
    winner = chosen(spec, timed(PLAIN, 0.15), timed(COMPILED, 0.1, capture_s=50.0))
    assert winner.candidate.id == COMPILED
    assert winner.compiling == "compiled: 1.50 times the speed, 48 s to compile"
    assert config(spec, winner).compile
    assert select.winning_job(spec, winner).train.compile is True


def test_a_second_timing_finds_what_was_compiled_and_the_run_is_predicted_so() -> None:
    first = timed(COMPILED, 0.1, capture_s=50.0)
    again = replace(timed(COMPILED, 0.1, capture_s=6.0), overheads=None)
    settled = predict.settle([first, again])
    assert settled.overheads == overheads(capture_s=6.0)
    assert compiling.gain(timed(PLAIN, 0.15), settled) == "1.50 times the speed, 48 s to compile"


@pytest.mark.parametrize(
    ("compiled", "why"),
    [
        (timed(COMPILED, 0.0999, capture_s=50.0), "1.00 times the speed, 48 s to compile"),
        (
            replace(timed(COMPILED, 0.2, capture_s=40.0), overheads=None, is_given_up=True),
            "0.50 times the speed, 38 s to compile",
        ),
        (Measurement(COMPILED, None, failure="no gcc", fault=NOT_COMPILABLE), "compiling failed"),
        (Measurement(COMPILED, None, failure="tried to allocate"), "out of memory"),
    ],
    ids=["no gain", "slower", "failed", "no memory"],
)
def test_without_a_gain_steps_stay_as_they_are(compiled: Measurement, why: str) -> None:
    """A share of 0.1 % over 10,000 s does not pay for 48 s."""
    spec = job_of("A100-80GB:1")
    winner = chosen(spec, timed(PLAIN, 0.1), compiled)
    assert winner.candidate.id == PLAIN
    assert winner.compiling == f"not compiled: {why}"
    assert not config(spec, winner).compile
    assert select.winning_job(spec, winner).train.compile is False


def test_the_job_s_own_word_holds() -> None:
    for given in (True, False):
        spec = job_of("A100-80GB:1", compile=given)
        winner = chosen(spec, timed(PLAIN, 0.1))
        assert winner.compiling == ""
        assert config(spec, winner).compile is given
        assert select.winning_job(spec, winner).train.compile is given


def test_a_cpu_compiles_nothing() -> None:
    spec = job_of("cpu:1")
    plan = plan_for(spec)
    winner = chosen(spec, timed(plan.candidates[0].id, 0.1))
    assert (plan.compiled, winner.compiling) == ((), "")
    assert not config(spec, winner).compile


def test_what_a_plan_leaves_out_is_not_compiled_either() -> None:
    plan = plan_for(job_of("A100-80GB:1", "T4:1"))
    a100, t4 = plan.placements
    assert [c.id for c in plan.only(a100, "is free").compiled] == [COMPILED]
    assert [c.id for c in plan.without({a100.name}, "is busy").compiled] == [f"{CHEAP}/compiled"]
    assert [c.id for c in plan.among(plan.only(t4, "is free")).compiled] == [f"{CHEAP}/compiled"]
    tried = plan.trying({COMPILED})
    assert [c.id for c in tried.candidates] == [PLAIN, CHEAP, COMPILED]
    assert [c.id for c in plan.among(tried).compiled] == [COMPILED, f"{CHEAP}/compiled"]
