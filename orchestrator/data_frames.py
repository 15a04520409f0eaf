"""What a job would try, and what its sweep found, as pandas data frames."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Interval, Measurement, Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.sweep import Sweep


def plan_frame(found: Plan) -> pd.DataFrame:
    """Returns a frame with a row for each candidate and each skipped combination, by id."""
    rows = [_planned(candidate) for candidate in found.candidates]
    rows += [{"id": skipped.id, "skipped": skipped.reason} for skipped in found.skipped]
    return _frame(rows, "id")


def candidate_frame(found: Sweep) -> pd.DataFrame:
    """Candidates with step time, and time and cost of the full run: one row each, by id.

    Times are in seconds, with the ends of their intervals; the candidate that is done soonest comes
    first.
    """
    known = {entry.candidate: entry for entry in found.measurements}
    expected = {entry.candidate: entry for entry in found.predictions}
    rows = [
        {
            **_planned(candidate),
            **_measured(known.get(candidate.id)),
            **_predicted(expected.get(candidate.id)),
        }
        for candidate in found.plan.candidates
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
    """Learning curves in long form: trial, optimizer step and the judged metric."""
    rows = [(trial.id, step, score) for trial in trials for step, score in trial.history]
    return pd.DataFrame(rows, columns=["trial", "step", "score"])


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
        "compiled": candidate.compiled,
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
        "better": found.better,
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
