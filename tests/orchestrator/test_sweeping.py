"""A sweep that the budget ends keeps what it has found."""

from dataclasses import replace
from pathlib import Path

from jobs.storage.storage import open_storage
from orchestrator.context import Context
from orchestrator.notices import Notice, Remark
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
