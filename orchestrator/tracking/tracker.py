"""What a tracker does with a run, and the values that every tracker gets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from jobs.spec import JobSpec
from jobs.training.events import Evaluated, Event, Metered, Stepped
from orchestrator.decisions import select
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner

Outcome = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's terms."""
Params = Mapping[str, object]
"""Values by dotted field, such as `train.optimizer.lr`."""


class Tracker(Protocol):
    """A destination of a run's metrics."""

    name: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record named values of an optimizer step."""

    def log_params(self, params: Params) -> None:
        """Record the job of the winner."""

    def log_trial(self, trial: TrialResult, metric: str) -> None:
        """Record a finished trial as a run of its own below this one."""

    def log_files(self, folder: str, paths: Sequence[Path]) -> None:
        """Upload files, or the content of folders, under a name."""

    def close(self, outcome: Outcome) -> None:
        """Flush all values and end the run."""


def step_of(event: Event) -> int | None:
    """Returns the optimizer step of an event; None if it has none."""
    return event.step if isinstance(event, Stepped | Evaluated) else None


def values_of(event: Event) -> dict[str, float]:
    """Returns the losses, rates, metrics or final speed of an event that are finite."""
    values: dict[str, Any] = {}
    match event:
        case Stepped():
            values = {
                "train/loss": event.loss,
                "train/lr": event.lr,
                "train/gradient_norm": event.gradient_norm,
            }
            if event.seconds:
                values["train/samples_per_s"] = event.samples / event.seconds
        case Evaluated():
            values = {f"eval/{name}": value for name, value in event.metrics.items()}
        case Metered():
            values = {f"speed/{name}": value for name, value in asdict(event).items()}
    return {k: v for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}


def params_of(spec: JobSpec, winner: Winner) -> Params:
    """Returns the fields of the job that trains the winner, and its placement."""
    job = select.winning_job(spec, winner).model_dump(mode="json", exclude_none=True)
    placement = winner.candidate.placement
    kept = {name: job[name] for name in ("seed", "model", "data", "train")}
    return {
        **_flat(kept),
        "placement.sku": placement.sku,
        "placement.workers": placement.workers,
        "accumulation": winner.candidate.accumulation,
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
