"""The receipt: what was predicted against what it took."""

from dataclasses import dataclass

from cluster.placement import Placement
from jobs.training.events import CheckpointRef, Metered
from orchestrator.decisions.predict import Interval
from orchestrator.decisions.select import Winner


@dataclass(frozen=True, slots=True)
class FitResult:
    """A trained model and how it went."""

    checkpoint: CheckpointRef
    labels: tuple[str, ...]
    steps: int
    duration_s: float
    """Wall time of this attempt, start of the worker group included."""
    resumed_from: int
    """Optimizer steps that an earlier attempt had done."""
    losses: tuple[tuple[int, float], ...]
    """Optimizer step and loss."""
    evaluations: tuple[tuple[int, float], ...]
    """Optimizer step and the first metric."""
    micro_batch_size: int = 0
    """The one it ended with: smaller than the winner's after running out of memory."""
    speed: Metered | None = None
    """How fast its steps were; None when nothing was left to do."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Predicted and actual time, cost and quality of a run."""

    run: str
    winner: str
    predicted_time_s: Interval | None
    """None when the job has no sweep."""
    actual_time_s: float
    """Of the training run, start of the worker group included."""
    predicted_cost_usd: Interval | None
    actual_cost_usd: float | None
    """None where no price is known."""
    sweep_time_s: float
    metrics: dict[str, float]
    simulated: bool
    """Whether the accelerators were only pretended, so that times and prices mean nothing."""
    resumed: bool
    """Whether training was resumed, so that the actual time is of its last part alone."""
    speed: Metered | None = None
    """How fast the steps were."""

    @property
    def time_error(self) -> float | None:
        """Actual over predicted time, minus 1."""
        if self.predicted_time_s is None or self.resumed:
            return None
        return self.actual_time_s / self.predicted_time_s.mean - 1

    @property
    def is_within_interval(self) -> bool | None:
        """Whether the actual time lies in the predicted interval."""
        if self.predicted_time_s is None or self.resumed:
            return None
        return self.predicted_time_s.low <= self.actual_time_s <= self.predicted_time_s.high


def write_receipt(run_id: str, winner: Winner, fit: FitResult, sweep_time_s: float) -> Receipt:
    """Compare a winner's prediction with the fit that followed."""
    placement: Placement = winner.candidate.placement
    prediction = winner.prediction
    return Receipt(
        run=run_id,
        winner=winner.candidate.id,
        predicted_time_s=prediction.time_s if prediction else None,
        actual_time_s=fit.duration_s,
        predicted_cost_usd=prediction.cost_usd if prediction else None,
        actual_cost_usd=_cost(placement, fit.duration_s),
        sweep_time_s=sweep_time_s,
        metrics=fit.checkpoint.metrics,
        simulated=placement.simulated,
        resumed=fit.resumed_from > 0,
        speed=fit.speed,
    )


def _cost(placement: Placement, seconds: float) -> float | None:
    price = placement.price_usd_per_hour
    return None if price is None else price * seconds / 3600
