"""A storage with runs in every state and a model with three versions, as stages write them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobs.spec import JobSpec
from jobs.storage.storage import Storage, open_storage
from jobs.training.events import CheckpointRef
from orchestrator.decisions import select
from orchestrator.decisions.search import TrialResult
from orchestrator.records import inputs, lease, receipt, registry, run_log, runs
from orchestrator.records.run_log import Line
from orchestrator.records.runs import Run
from tests.builders import any_of, inventory, job, measurement, plan_of, prediction, sweep
from tests.orchestrator.records import acting

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OWNER = "<img src=x onerror=alert(1)>@laptop"
"""A name that must stay text."""
RATES = (1e-5, 3e-5, 1e-4)


@dataclass(frozen=True, slots=True)
class Stored:
    """A storage, and the ids of its runs."""

    storage: Storage
    completed: tuple[str, ...]
    failed: str
    running: str
    versions: tuple[str, ...]


def swept(lr: float = 1e-4) -> JobSpec:
    """A job with a sweep over two placements."""
    return job(
        resources__any_of=any_of("T4:1", "V100-16GB:1"),
        train__optimizer__lr=lr,
        sweep=sweep({"train.precision": ["fp16"], "train.optimizer.lr": list(RATES)}),
    )


@contextlib.contextmanager
def everything(folder: Path) -> Iterator[Stored]:
    """A storage in a folder, one of whose runs goes on inside the block."""
    storage = open_storage(folder / ".winnow")
    completed = tuple(complete(storage, number, folder) for number in range(3))
    failed = runs.create(storage, job(seed=7), NOW - timedelta(hours=5), "bob@laptop")
    failed.note("failed", error="no data")
    spec = swept(5e-4)
    going = runs.create(storage, spec, NOW, OWNER)
    key = runs.lease_key(spec)
    with lease.held(storage.objects, key, "job", lambda _: None) as held:
        going.note("owned", epoch=str(held.epoch), lease=key)
        going.write("plan", plan_of(spec, inventory(T4=1, V100_16GB=1)))
        for step in range(1, 6):
            say(going, "fit", f"{step}/90 loss {1 / step:.4f}, 100 samples/s, 3 s left")
        say(going, "", "step 5: accuracy 0.8000, f1 0.7900")
        versions = tuple(version.id for version, _ in registry.every(storage))
        yield Stored(storage, completed, failed.id, going.id, versions)


def say(run: Run, stage: str, text: str) -> None:
    """A line in the log of a run."""
    run.append(run_log.NAME, Line(datetime.now(UTC), stage, text))


def complete(storage: Storage, number: int, folder: Path) -> str:
    """The id of a run with a sweep, a fit, a receipt and a published and deployed model."""
    spec = swept(RATES[number])
    run = runs.create(storage, spec, NOW - timedelta(days=number + 1), "alice@laptop")
    plan = plan_of(spec, inventory(T4=1, V100_16GB=1))
    run.keep(inputs.FILE, b'{"data.train": "1a2b", "code": "3c4d"}')
    run.write("plan", plan)
    for candidate in plan.candidates[:4]:
        run.append("measurements", measurement(candidate.id, 0.2 + 0.1 * number))
    ids = [candidate.id for candidate in plan.candidates[:2]]
    trials = [
        TrialResult(
            id=f"trial-{at}",
            candidate=ids[0],
            params={"train.optimizer.lr": rate},
            metrics={"accuracy": 0.7 + 0.05 * at},
            history=tuple((step, 0.5 + 0.05 * at + step / 100) for step in range(5, 21, 5)),
            duration_s=10.0,
        )
        for at, rate in enumerate(RATES)
    ]
    for each in trials:
        run.append("trials", each)
    predicted = [
        prediction(identity, time_s=100.0 * (at + 1), cost_usd=0.5 / (at + 1))
        for at, identity in enumerate(ids)
    ]
    winner = select.select(spec, plan, predicted, trials)
    run.write("winner", winner)
    metrics = {"accuracy": 0.9 + number / 100, "f1": 0.88}
    reference = CheckpointRef("/x", 20, metrics)
    losses = tuple((step, 1 / step) for step in range(1, 101))
    evaluations = ((50, 0.8), (100, metrics["accuracy"]))
    fit = receipt.FitResult(reference, ("a", "b"), 100, 110.0, 0, losses, evaluations)
    run.write("fit", fit)
    run.write("receipt", receipt.write_receipt(run.id, winner, fit, 30.0, 0.02))
    made = acting.checkpoint(folder / f"checkpoint-{number}", f"weights {number}")
    version = registry.publish(spec, made, ("a", "b"), run_id=run.id, storage=storage)
    registry.note_deployed(storage, version)
    run.write("model", version)
    say(run, "", "done")
    run.note("completed")
    return run.id
