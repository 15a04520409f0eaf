"""Winnow from Python: plans and sweep results as pandas data frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from cluster import catalogue
from jobs.loader import loads
from jobs.loader.files import files_exist
from jobs.loader.rows import rows_suit_the_job
from jobs.spec import JobSpec
from orchestrator.cli.options import load_job
from orchestrator.cli.plan import planned
from orchestrator.cli.run import started
from orchestrator.decisions.measurement import Interval, Measurement, Prediction
from orchestrator.decisions.plan import Candidate, Plan
from orchestrator.decisions.resolve import with_absolute_paths
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner

Job = str | Path | Mapping[str, Any]
"""Path of a job file, or its content with paths relative to the working directory."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The results of a sweep."""

    run: str
    """Path or URL of the run's files."""
    winner: Winner
    winning_job: str
    """YAML of a job that trains the winner."""
    candidates: pd.DataFrame
    """One row for each candidate, fastest first: step time, and time and cost of the full run."""
    trials: pd.DataFrame
    """One row for each trial: its parameters, and the metrics of its last evaluation."""
    curves: pd.DataFrame
    """Trial, optimizer step and the judged metric at each evaluation."""


def plan(
    job: Job,
    *,
    settings: Sequence[str] = (),
    inventory: Path | None = None,
    address: str | None = None,
) -> pd.DataFrame:
    """Plan a job on the nodes of a running cluster or of a JSON file.

    Returns a frame of candidates with their memory verdicts, and skipped ones with the reason.

    Raises:
        JobFileError: with everything that is wrong with the job.
        ClusterError: if no cluster is up.
    """
    found, _ = planned(_spec(job, settings), inventory, address)
    return plan_frame(found)


def sweep(
    job: Job,
    *,
    settings: Sequence[str] = (),
    address: str | None = None,
    insecure_local: bool = False,
    resume: bool = False,
) -> Swept:
    """Sweep as `winnow sweep` does; starts a local cluster if none is named and none is up.

    Raises:
        WinnowError: if the sweep fails, with a sentence for the user.
    """
    spec = _spec(job, settings)
    name = Path(f"{spec.name}.yaml") if isinstance(job, Mapping) else Path(job)
    with started(
        spec, name, resume=resume, address=address, insecure_local=insecure_local, quiet=False
    ) as context:
        from orchestrator import pipeline  # Ray reads its environment when it is imported
        from orchestrator import sweep as sweeping

        tried, found, _ = pipeline.sweep_only(context)
        return Swept(
            run=context.run.url,
            winner=found.winner,
            winning_job=context.run.local_copy(sweeping.WINNER).read_text(encoding="utf-8"),
            candidates=candidate_frame(tried, found.measurements, found.predictions),
            trials=trial_frame(found.trials),
            curves=curve_frame(found.trials),
        )


def plan_frame(found: Plan) -> pd.DataFrame:
    """Returns a frame with a row for each candidate and each skipped combination, by id."""
    rows = [_planned(candidate) for candidate in found.candidates]
    rows += [{"id": skipped.id, "skipped": skipped.reason} for skipped in found.skipped]
    return _frame(rows, "id")


def candidate_frame(
    found: Plan, measured: Sequence[Measurement], predicted: Sequence[Prediction]
) -> pd.DataFrame:
    """Returns a frame of candidates with measurement and prediction, by id, fastest first."""
    known = {entry.candidate: entry for entry in measured}
    expected = {entry.candidate: entry for entry in predicted}
    rows = [
        {
            **_planned(candidate),
            **_measured(known.get(candidate.id)),
            **_predicted(expected.get(candidate.id)),
        }
        for candidate in found.candidates
    ]
    frame = _frame(rows, "id")
    return frame.sort_values("time_s", na_position="last") if "time_s" in frame else frame


def trial_frame(trials: Sequence[TrialResult]) -> pd.DataFrame:
    """Returns a frame of trials by id: parameters by path, metrics by name."""
    rows = [
        {
            "id": trial.id,
            "candidate": trial.candidate,
            **trial.params,
            **trial.metrics,
            "steps": trial.history[-1][0] if trial.history else 0,
            "stopped_early": trial.stopped_early,
            "duration_s": trial.duration_s,
            "failure": trial.failure,
        }
        for trial in trials
    ]
    return _frame(rows, "id")


def curve_frame(trials: Sequence[TrialResult]) -> pd.DataFrame:
    """Returns the learning curves in long form: trial, step, score."""
    rows = [(trial.id, step, score) for trial in trials for step, score in trial.history]
    return pd.DataFrame(rows, columns=["trial", "step", "score"])


def _spec(job: Job, settings: Sequence[str]) -> JobSpec:
    if not isinstance(job, Mapping):
        return load_job(Path(job), list(settings))
    here = Path.cwd()
    rules = (catalogue.accelerator_rules, files_exist(here), rows_suit_the_job(here))
    text = yaml.safe_dump(dict(job))
    return with_absolute_paths(loads(text, "job", settings=settings, extra_rules=rules), here)


def _frame(rows: Sequence[Mapping[str, Any]], key: str) -> pd.DataFrame:
    return pd.DataFrame(rows).set_index(key) if rows else pd.DataFrame()


def _planned(candidate: Candidate) -> dict[str, Any]:
    placement, memory = candidate.placement, candidate.memory
    return {
        "id": candidate.id,
        "accelerator": placement.sku,
        "workers": placement.workers,
        "micro_batch_size": candidate.micro_batch_size,
        "precision": candidate.precision,
        "accumulation": candidate.accumulation,
        "usd_per_hour": placement.price_usd_per_hour,
        "memory_gib": memory.expected_gib if memory else None,
        "verdict": candidate.verdict,
    }


def _measured(found: Measurement | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        **_spread("step_s", found.step_s),
        "peak_memory_gib": found.peak_memory_gib,
        "given_up": found.is_given_up,
        "failure": found.failure,
    }


def _predicted(found: Prediction | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {**_spread("time_s", found.time_s), **_spread("cost_usd", found.cost_usd)}


def _spread(name: str, value: Interval | None) -> dict[str, float | None]:
    """Returns the columns of an interval: mean, low and high."""
    if value is None:
        return {name: None}
    return {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
