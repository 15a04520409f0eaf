"""How well full runs are predicted: probe every candidate of some jobs, then train each in full.

    python benchmarks/predict.py JOB.yaml … [--longest 120] [--confirm N] [--give-up] [--out FILE]

Each job has a sweep, such as those in benchmarks/jobs/. All its candidates are probed, none given
up early; with `--give-up` as many as `winnow run` does, and what is given up is not trained. Then
every candidate is timed again right before it is trained, as `winnow run` does with the winner; or
only the N fastest of each placement, after the probes. Probes and fits share the workers of a
placement, as in `winnow run`; a fit's memory on a CPU has what earlier ones left there. Candidates
predicted to take longer than `--longest` seconds are not trained. Prints a row for each fit and the
summary of `winnow accuracy`, whether the best predicted candidate is the best trained one, and
writes JSON to benchmarks/results/ or `--out` after every fit.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.storage.storage import open_storage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cluster import session  # noqa: E402 - the script runs from a clone, installed or not
from jobs.spec import JobSpec  # noqa: E402
from orchestrator.execution import quiet_libraries  # noqa: E402
from orchestrator.loading import load_job  # noqa: E402
from orchestrator.notices import Notice, Progress, Remark, StageFinished, StageStarted  # noqa: E402
from orchestrator.records import runs  # noqa: E402


def main() -> int:
    """Probe, train, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path, nargs="+")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds of a fit")
    parser.add_argument("--confirm", type=int, help="how many to time again; each, if left out")
    parser.add_argument("--give-up", action="store_true", help="probe as `winnow run` does")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    quiet_libraries()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path[1:]])
    now = datetime.now(UTC)
    out = arguments.out or ROOT / "benchmarks/results" / f"predict-{now:%Y%m%d-%H%M%S}.json"
    result = Result(out, now)
    with tempfile.TemporaryDirectory() as folder, session.connect() as cluster:
        for path in arguments.jobs:
            spec = load_job(path, None)
            measure_job(spec, Path(folder), cluster.serve_port, arguments, result)
    result.show()
    return 0


@dataclasses.dataclass
class Result:
    """Every fit so far."""

    path: Path
    date: datetime
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    receipts: list[Any] = dataclasses.field(default_factory=list)
    choices: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    def write(self) -> None:
        """Record what is there."""
        from orchestrator.records.accuracy import accuracy

        value = {
            "date": self.date.isoformat(timespec="seconds"),
            "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
            "accuracy": [dataclasses.asdict(row) for row in accuracy(self.receipts)],
            "accuracy_undisturbed": [
                dataclasses.asdict(row)
                for row in accuracy([r for r in self.receipts if not r.disturbances])
            ],
            "choices": self.choices,
            "left_out": self.left_out,
            "fits": self.rows,
        }
        self.path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    def show(self) -> None:
        """Print a table."""
        self.write()
        for row in self.rows:
            numbers = (row["predicted_s"], row["low_s"], row["high_s"], row["actual_s"])
            times = "\t".join(f"{number:.1f}" for number in numbers)
            memory = "\t".join(str(row[f"{name}_gib"]) for name in ("planned", "probed", "actual"))
            print(f"{row['job']}\t{row['candidate']}\t{times}\t{row['off']:+.1%}\t{memory}")
        written = json.loads(self.path.read_text(encoding="utf-8"))
        print("all fits:", *written["accuracy"])
        print("undisturbed fits:", *written["accuracy_undisturbed"])
        for choice in self.choices:
            print(choice)
        print(f"written to {self.path}")


def measure_job(
    spec: JobSpec,
    folder: Path,
    serve_port: int,
    arguments: argparse.Namespace,
    result: Result,
) -> None:
    """Probe every candidate of a job, train each, and compare."""
    from orchestrator.context import Context
    from orchestrator.stages.secrets import secrets_of
    from orchestrator.stages.workers import Workers

    storage = open_storage(folder)
    run = runs.create(storage, spec, datetime.now(UTC))
    workers = Workers(secrets_of(spec), run.folder, spec.wait.timeout.total_seconds())
    with contextlib.closing(workers):
        context = Context(spec, run, storage, tell, serve_port, workers=workers)
        measure_candidates(context, arguments, result)


def measure_candidates(context: Any, arguments: argparse.Namespace, result: Result) -> None:
    """Probe every candidate of a run, train each, and compare."""
    from orchestrator import pipeline
    from orchestrator.availability import Availability
    from orchestrator.probing import probe

    spec = context.spec
    plan = pipeline.plan_stage(context)
    for skipped in plan.skipped:
        result.left_out[f"{spec.name} {skipped.id}"] = skipped.reason
    devices = Availability(context, plan)
    speeds = probe(context, plan, devices, is_thorough=not arguments.give_up)
    result.left_out |= given_up(spec, speeds)
    fits: dict[str, Any] = {}
    by_time = sorted(speeds.predictions, key=lambda found: found.time_s.mean)
    candidates = [plan.candidate(found.candidate) for found in by_time]
    for placement in {candidate.placement.name for candidate in candidates}:
        here = [c for c in candidates if c.placement.name == placement]
        again(context, speeds, here[: arguments.confirm or 0])
    for candidate in candidates:
        if arguments.confirm is None:
            again(context, speeds, [candidate])
        prediction = next(p for p in speeds.predictions if p.candidate == candidate.id)
        if prediction.time_s.mean > arguments.longest:
            name = f"{spec.name} {prediction.candidate}"
            result.left_out[name] = f"predicted to take {prediction.time_s.mean:.0f} s"
            continue
        receipt = fits[prediction.candidate] = train(context, plan, prediction)
        measured = next(m for m in speeds.measurements if m.candidate == prediction.candidate)
        result.receipts.append(receipt)
        result.rows.append(row(spec, receipt, measured))
        result.write()
    result.choices += choices(spec, plan, speeds.predictions, fits)


def given_up(spec: JobSpec, speeds: Any) -> dict[str, str]:
    """Candidates whose probe ended early, and why."""
    return {
        f"{spec.name} {found.candidate}": f"given up: {found.step_s.mean:.3g} s a step at least"
        for found in speeds.measurements
        if found.is_given_up
    }


def again(context: Any, speeds: Any, candidates: Any) -> None:
    """Time candidates briefly, in the workers of their placement."""
    from orchestrator.stages import speed

    findings = speed.ProbeCallbacks(speeds.take, speeds.take_launch)
    speed.measure(
        context.spec,
        candidates,
        context.run.folder,
        findings,
        is_brief=True,
        workers=context.workers,
    )


def train(context: Any, plan: Any, prediction: Any) -> Any:
    """The receipt of a full fit of a candidate."""
    from orchestrator.decisions.select import Winner
    from orchestrator.fitting import fit_stage
    from orchestrator.records.receipt import write_receipt

    run = context.run
    storage = open_storage(run.folder / "fits" / prediction.candidate.replace("/", "-"))
    own = runs.Run(run.id, storage)
    winner = Winner(plan.candidate(prediction.candidate), {}, prediction, "benchmark")
    fit = fit_stage(dataclasses.replace(context, run=own, storage=storage), winner)
    shutil.rmtree(own.folder / "fit" / "checkpoints")
    return write_receipt(run.id, winner, fit, 0.0)


def row(spec: JobSpec, receipt: Any, measured: Any) -> dict[str, Any]:
    """A fit as numbers."""
    predicted = receipt.predicted_time_s
    memory = receipt.memory.expected_gib if receipt.memory else None
    fixed = dataclasses.asdict(receipt.phases)
    return {
        "job": spec.name,
        "candidate": receipt.winner,
        "predicted_s": predicted.mean,
        "low_s": predicted.low,
        "high_s": predicted.high,
        "actual_s": receipt.actual_time_s,
        "off": receipt.time_error,
        "is_within": receipt.is_within_interval,
        "planned_gib": rounded(memory),
        "probed_gib": rounded(receipt.probed_memory_gib),
        "actual_gib": rounded(receipt.actual_memory_gib),
        "phases": fixed,
        "stepping_s": receipt.speed.steps and receipt.speed.wall_s,
        "probe_s": measured.probe_s,
        "is_steady": measured.is_steady,
        "disturbances": [*receipt.disturbances, *measured.disturbances],
        "mode": receipt.speed.mode,
        "metrics": receipt.metrics,
    }


def choices(
    spec: JobSpec, plan: Any, predictions: Any, fits: dict[str, Any]
) -> list[dict[str, Any]]:
    """The best candidate by prediction and by what its fit took, for both objectives."""
    found = []
    by_id = {p.candidate: p for p in predictions}
    prices = {name: plan.candidate(name).placement.price_usd_per_hour for name in by_id}
    for objective in ("time", "cost") if all(prices.values()) else ("time",):

        def cost(name: str, seconds: float, objective: str = objective) -> float:
            return seconds * (1.0 if objective == "time" else prices[name] or 0.0)

        predicted = {name: cost(name, by_id[name].time_s.mean) for name in by_id}
        actual = {name: cost(name, receipt.actual_time_s) for name, receipt in fits.items()}
        if not actual:
            continue
        chosen = min(predicted, key=predicted.__getitem__)
        best = min(actual, key=actual.__getitem__)
        found.append(
            {
                "job": spec.name,
                "objective": objective,
                "chosen": chosen,
                "best": best,
                "regret": actual[chosen] / actual[best] - 1 if chosen in actual else None,
            }
        )
    return found


def rounded(value: float | None) -> float | None:
    """As it is worth reading."""
    return None if value is None else round(value, 3)


def tell(notice: Notice) -> None:
    """Progress on stderr, without the steps of fits."""
    match notice:
        case Progress("probe", _, _, text) | Remark(text):
            say(f"  {text}")
        case StageStarted(stage, text) | StageFinished(stage, text):
            say(f"{stage} {text}")


def say(text: str) -> None:
    """A line on stderr with the time."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
