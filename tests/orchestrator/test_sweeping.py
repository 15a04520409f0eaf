"""What a sweep keeps when the budget ends it, what it compiles, and what nodes a run requests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cluster.placement import Placement
from jobs.spec import JobSpec
from jobs.storage.storage import open_storage
from jobs.training.events import CheckpointRef
from orchestrator.context import Context
from orchestrator.decisions import predict, select
from orchestrator.decisions.leases import Unqueued
from orchestrator.decisions.measurement import Interval, Launch, Measurement
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.trial_times import TrialTiming
from orchestrator.notices import Notice, Remark
from orchestrator.records.receipt import FitResult, write_receipt
from orchestrator.records.receipt_text import receipt_text
from orchestrator.records.runs import Run
from orchestrator.speeds import Speeds
from tests.builders import any_of, inventory, job, measurement, plan_of, speed, sweep, trial

ID, COMPILED = "T4:1/16/fp16", "T4:1/16/fp16/compiled"


def trials_job(**fields: Any) -> JobSpec:
    """A job with one candidate to probe and two trials of the learning rate."""
    values: dict[str, Any] = {
        "train__precision": "fp16",
        "train__micro_batch_size": 16,
        "resources__any_of": any_of("T4:1"),
        "prices": {"T4": 3.6},
        "sweep": sweep({"train.optimizer.lr": [1e-5, 1e-4]}, trials=2),
    }
    return job(**{**values, **fields})


def test_trials_of_an_interrupted_run_count_though_the_budget_allows_no_more(
    tmp_path: Path,
) -> None:
    from orchestrator import sweeping as stage
    from orchestrator.availability import Availability

    spec = trials_job(budget={"max_duration": "60s"})
    plan = plan_of(spec, inventory(T4=1))
    told: list[Notice] = []
    storage = open_storage(tmp_path)
    context = Context(spec, Run("r", storage), storage, told.append, 0)
    context.run.append("measurements", measurement(ID))
    context.run.append("trials", trial(ID, 1e-4, 0.9))
    devices = Availability(context, plan)
    late = replace(context, began=context.clock() - 50)
    speeds = stage.Speeds(late, plan)
    assert [found.params for found in stage._try(late, plan, speeds, devices)] == [
        {"train.optimizer.lr": 1e-4}
    ]
    assert told == [Remark("no more trials: the budget is kept for the full run")]
    assert not stage.Speeds(context, plan).must_end("anything")


class SomeFree(Unqueued):
    """Devices of which only some placements are free."""

    def __init__(self, *free: str) -> None:
        self._free = free

    def has_room(self, placement: Placement) -> bool:
        return placement.name in self._free


@pytest.mark.parametrize(
    ("free", "left"), [(["L40S:1", "T4:1"], ["T4:1"]), (["T4:1"], []), (["L40S:1"], [])]
)
def test_trials_begin_before_all_is_probed_only_if_their_own_devices_can_be_had(
    free: list[str], left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what is left is probed first; of a node that is lost then, trials wait for none."""
    from orchestrator import sweeping as stage
    from orchestrator.availability import Availability

    spec, told = trials_job(resources__any_of=any_of("L40S:1", "T4:1")), list[Notice]()
    plan, storage = plan_of(spec, inventory(L40S=1, T4=1)), open_storage(tmp_path)
    first, second = (candidate.id for candidate in plan.probing_order)

    def measure(_: JobSpec, todo: Any, __: Path, callbacks: Any, **___: Any) -> None:
        for candidate in todo:
            if callbacks.first_free([candidate.placement]):
                callbacks.on_measurement(measurement(candidate.id))

    monkeypatch.setattr("orchestrator.stages.speed.measure", measure)
    context = Context(spec, Run("r", storage), storage, told.append, 0, devices=SomeFree(*free))
    context.run.append("measurements", measurement(first))
    devices = Availability(context, plan)
    speeds, found = stage.probe_until_trials(context, plan, devices)
    assert [placement.name for placement in found] == left
    assert (second in speeds.measured) == (not left)
    devices.busy.add("L40S:1")
    if left:
        assert stage._try(context, plan, speeds, devices, found) == ()


def test_a_resumed_run_expects_to_start_workers_and_pays_for_each_start_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator import sweeping as stage
    from orchestrator.availability import Availability

    spec = trials_job()
    plan = plan_of(spec, inventory(T4=1))
    storage = open_storage(tmp_path)
    context = Context(spec, Run("r", storage), storage, lambda _: None, 0)
    context.run.append("measurements", measurement(ID, probe_s=30.0))
    for launch in (Launch("T4:1", 12.0), Launch("T4:1", end_s=2.0)):
        context.run.append("launches", replace(launch, is_apart=True))
    speeds = stage.Speeds(context, plan)
    (cold,) = speeds.predictions
    (warm,) = predict.predict_all(spec, plan.candidates, speeds.measurements, (), "T4:1")
    winner = select.select(spec, plan, [warm], (), speeds.eval_rows)
    phases = [each and each.phases for each in (winner.prediction, cold)]
    assert [each and each.start for each in phases] == [0.0, 12.0]
    monkeypatch.setattr(Availability, "await_free", lambda *_: True)
    stage.adopt(context, winner)
    found = stage.run_sweep(context, plan)
    assert found.winner.prediction == cold
    assert context.run.value("winner", select.Winner) == found.winner
    finished = [note["stage"] for note in context.run.notes if note["event"] == "finished"]
    assert finished == ["winner"]  # once, though its prediction has changed since
    assert found.cost_usd == pytest.approx((30 + 12 + 2) * 3.6 / 3600)


def test_a_run_requests_the_nodes_of_its_winner_and_once_trained_those_of_its_endpoint(
    tmp_path: Path,
) -> None:
    from orchestrator.availability import wanted_nodes

    spec = job(
        resources={"any_of": any_of("T4:2", "T4:1"), "autoscale": "5m"},
        serve={"route": "/a", "accelerators": "L40S:1"},
    )
    storage = open_storage(tmp_path)
    context = Context(spec, Run("r", storage), storage, lambda _: None, 0)

    def names() -> list[list[str]]:
        return [[str(each.accelerators) for each in group] for group in wanted_nodes(context)]

    assert names() == [["T4:2", "T4:1", "L40S:1"]]
    context.run.write("winner", select.select_unmeasured(plan_of(spec, inventory(T4=1))))
    assert names() == [["T4:1", "L40S:1"]]
    trained = FitResult(CheckpointRef("/x", 1, {}), ("a", "b"), 1, 1.0, 0, (), ())
    context.run.write("fit", trained)
    assert names() == [["L40S:1"]]


def compile_job() -> JobSpec:
    """A job of one candidate, which is probed once."""
    space = sweep({"train.micro_batch_size": [16]}, probe={"confirm": 0})
    return job(train__precision="fp16", resources__any_of=any_of("T4:1"), sweep=space)


def context_of(folder: Path, *measured: Measurement) -> tuple[Context, list[Notice]]:
    """A run whose probes have been made before it was interrupted."""
    told: list[Notice] = []
    storage = open_storage(folder)
    context = Context(compile_job(), Run("r", storage), storage, told.append, 0)
    for each in measured:
        context.run.append("measurements", each)
    return context, told


def test_a_compiled_winner_is_in_plan_log_job_file_and_receipt(tmp_path: Path) -> None:
    from orchestrator import sweeping as stage

    steps = {"steps": 100_000}
    slow = measurement(ID, 0.15, **steps)
    fast = measurement(COMPILED, 0.1, speed=speed(capture_s=49.0), **steps)
    context, told = context_of(tmp_path, slow, fast)
    plan = plan_of(context.spec, inventory(T4=1))
    found = stage.run_sweep(context, plan)
    why = "compiled: 1.50 times the speed, 48 s to compile"
    assert found.winner.candidate.id == COMPILED
    assert [m.candidate for m in found.measurements] == [ID, COMPILED]
    assert [c.id for c in found.plan.candidates] == [ID, COMPILED]
    assert Remark(why) in told
    assert b"compile: true" in (context.run.kept("winner.yaml") or b"")
    trained = FitResult(CheckpointRef("/x", 1, {}), ("a", "b"), 1, 1.0, 0, (), ())
    assert why in receipt_text(write_receipt("r", found.winner, trained, 1.0))
    assert stage.run_sweep(context, plan).winner == found.winner  # read back


def test_trials_time_their_candidate_once_more_also_for_a_run_that_goes_on(tmp_path: Path) -> None:
    first, second = measurement(ID, 0.20), measurement(ID, 0.24)
    context, told = context_of(tmp_path, first, second)
    plan = plan_of(context.spec, inventory(T4=1))
    speeds = Speeds(context, plan)
    timing = TrialTiming(Interval(0.21, 0.22, 0.23), 50, 11.0, capture_s=0.5)
    several = [
        replace(trial(name, 1e-4, 0.9), timing=of)
        for name, of in ((ID, timing), (ID, None), ("gone:1/8/fp32", timing))
    ]
    speeds.take_trials(several)
    assert Remark(f"{ID}: 0.22 s a step in its trials") in told
    for found in (speeds, Speeds(context, plan)):
        means = [each.step_s.mean for each in found.timings(ID) if each.step_s]
        assert means == [0.20, 0.22, 0.24]
        assert found.every == (first, second)
        (settled,) = found.measurements
        assert settled.step_s is not None
        assert settled.step_s.mean == 0.22
    few = replace(timing, seconds=9.0)
    fresh, _ = context_of(tmp_path / "fresh", first)
    speeds = Speeds(fresh, plan)
    speeds.take_trials([replace(several[0], timing=few)])
    assert speeds.timings(ID) == [first]


def test_records_of_a_release_that_could_not_compile_are_read(tmp_path: Path) -> None:
    from orchestrator import sweeping as stage

    context, _ = context_of(tmp_path, measurement(ID))
    plan = plan_of(context.spec, inventory(T4=1))
    new = stage.run_sweep(context, plan)
    too_short = "not compiled: all steps take 0.17 min, and it may pay from 10 min"
    assert new.winner.compiling == too_short
    context.run.write("plan", new.plan)
    for name in ("winner.json", "plan.json"):
        values = json.loads(context.run.kept(name) or b"")
        older = without(values, "compiled", "compiling")
        assert older != values
        context.run.keep(name, json.dumps(older).encode())
    assert context.run.value("plan", Plan).candidates == new.plan.candidates
    old = stage.run_sweep(context, plan)
    assert old.winner == replace(new.winner, compiling="")
    (measured,) = old.measurements
    kind = TypeAdapter(Measurement)
    assert kind.validate_python(without(kind.dump_python(measured), "fault")) == measured


def without(value: Any, *names: str) -> Any:
    """JSON without keys of these names."""
    if isinstance(value, list):
        return [without(each, *names) for each in value]
    if isinstance(value, dict):
        return {key: without(each, *names) for key, each in value.items() if key not in names}
    return value
