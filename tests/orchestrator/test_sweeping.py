"""What a sweep keeps when the budget ends it, and what nodes a run requests."""

from dataclasses import replace
from pathlib import Path

from jobs.storage.storage import open_storage
from jobs.training.events import CheckpointRef
from orchestrator.context import Context
from orchestrator.decisions import select
from orchestrator.notices import Notice, Remark
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from tests.builders import any_of, inventory, job, measurement, plan_of, sweep, trial

ID = "T4:1/16/fp16"


def test_trials_of_an_interrupted_run_count_though_the_budget_allows_no_more(
    tmp_path: Path,
) -> None:
    from orchestrator import sweeping as stage
    from orchestrator.availability import Availability

    spec = job(
        train__precision="fp16",
        train__micro_batch_size=16,
        resources__any_of=any_of("T4:1"),
        prices={"T4": 3.6},
        budget={"max_duration": "60s"},
        sweep=sweep({"train.optimizer.lr": [1e-5, 1e-4]}, trials=2),
    )
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
