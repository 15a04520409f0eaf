"""What `winnow ls` shows of a run, read from the files in its folder."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Literal, TypeVar

import yaml
from pydantic import ValidationError

from jobs.errors import RunError
from jobs.spec import JobSpec
from orchestrator.decisions import search
from orchestrator.decisions.select import Winner
from orchestrator.records import lease, runs
from orchestrator.records.lease import Holder
from orchestrator.records.receipt import Receipt
from orchestrator.records.runs import Notes, Run

Value = TypeVar("Value")
State = Literal["running", "completed", "failed", "interrupted", "died"]
"""`died`: the process of the run ended without noting how."""
ENDED: Mapping[str, State] = MappingProxyType(
    {"completed": "completed", "failed": "failed", "interrupted": "interrupted"}
)
"""States of runs whose journal has an end."""
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C, ten times faster, where PyYAML was built with it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run; None for a value that the run does not have, or not yet."""

    id: str
    state: State
    created: datetime | None
    owner: str | None
    """User and host that created the run; None for a run of an older release."""
    model: str
    """Name under which the job publishes its model."""
    winner: str | None
    """Id of the winner's candidate."""
    metric: str | None
    """Name of the judged metric."""
    value: float | None
    """Value of the judged metric after training."""
    time_s: float | None
    """Duration of the sweep, the training and the harness."""
    cost_usd: float | None
    """Cost of the sweep, the training and the harness; None where no price is known."""


def summarize(run: Run) -> Summary:
    """Read the files of a run; a damaged file counts as absent."""
    notes, receipt = run.notes, recorded(run, "receipt", Receipt)
    winner = receipt.winner if receipt else None
    if winner is None and (chosen := recorded(run, "winner", Winner)):
        winner = chosen.candidate.id
    created = next((note for note in notes if note["event"] == "created"), {})
    metric = _metric_of(run)
    return Summary(
        id=run.id,
        state=state_of(notes, holder_of(run, notes)),
        created=datetime.fromisoformat(created["time"]) if created else None,
        owner=created.get("by"),
        model=runs.job_name(run.id),
        winner=winner,
        metric=metric,
        value=receipt.metrics.get(metric) if receipt and metric else None,
        time_s=_time_s(receipt) if receipt else None,
        cost_usd=_cost_usd(receipt) if receipt else None,
    )


def state_of(notes: Notes, holder: Holder | None) -> State:
    """Returns the state of a run from its journal and the present holder of its job's lease."""
    if ended := ENDED.get(runs.state_of(notes)):
        return ended
    if holder is None or holder.owner is None or lease.is_gone(holder):
        return "died"
    return "running" if _epoch(notes) in (None, str(holder.epoch)) else "died"


def recorded(run: Run, name: str, kind: type[Value]) -> Value | None:
    """Returns the recorded value of a stage; None if there is none or it is damaged."""
    with contextlib.suppress(RunError):
        return run.read(name, kind)
    return None


def present_state(run: Run) -> State:
    """Returns the state of a run as the storage shows it now."""
    notes = run.notes
    return state_of(notes, holder_of(run, notes))


def holder_of(run: Run, notes: Notes) -> Holder | None:
    """Returns the last holder of the lease of a run's job; None if it was never held."""
    key = runs.lease_key_of(run, notes)
    return lease.holder(run.storage.objects, key) if key else None


def _epoch(notes: Notes) -> str | None:
    """Returns the epoch of the lease under which the run was last worked on."""
    return next((note["epoch"] for note in reversed(notes) if note["event"] == "owned"), None)


def _metric_of(run: Run) -> str | None:
    with contextlib.suppress(yaml.YAMLError, ValidationError):
        job = JobSpec.model_validate(yaml.load(run.kept(runs.SPEC_FILE) or b"", YAML_LOADER))
        return search.judged_metric(job).name
    return None


def _time_s(receipt: Receipt) -> float:
    judging_s = receipt.harness.seconds if receipt.harness else 0.0
    return receipt.sweep_time_s + receipt.actual_time_s + judging_s


def _cost_usd(receipt: Receipt) -> float | None:
    if receipt.actual_cost_usd is None:
        return None
    others = (receipt.sweep_cost_usd, receipt.proof_cost_usd, receipt.harness_cost_usd)
    return receipt.actual_cost_usd + sum(cost or 0.0 for cost in others)
