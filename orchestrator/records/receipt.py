"""The receipt: what was predicted against what it took."""

from dataclasses import dataclass

from cluster.memory import MemoryEstimate
from cluster.placement import Placement
from jobs.training.events import CheckpointRef, Metered, Proven
from orchestrator.decisions.predict import Interval, Phases, disturbances
from orchestrator.decisions.select import Winner


@dataclass(frozen=True, slots=True)
class Projection:
    """The whole time of a fit as it looked when a share of its steps was done."""

    share: float
    time_s: float


@dataclass(frozen=True, slots=True)
class FitResult:
    """A trained model and how it went."""

    checkpoint: CheckpointRef
    labels: tuple[str, ...]
    steps: int
    duration_s: float
    """Wall time of this attempt, start of the worker group included, the proof left out."""
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
    stopped_at: int | None = None
    """The step after which its budget was used up; None when it went on to the end."""
    projections: tuple[Projection, ...] = ()
    """What the whole time looked like on the way."""
    proof: Proven | None = None
    """That its saved model scores as it did in training; None for what an older release trained."""
    run: str = ""
    """Id of the run that it is the training of."""


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
    sku: str = ""
    phases: Phases | None = None
    """Where the predicted time was to go."""
    memory: MemoryEstimate | None = None
    """Of one worker, before anything ran."""
    probed_memory_gib: float | None = None
    """As the probe found it."""
    projections: tuple[Projection, ...] = ()
    stopped_at: int | None = None
    """The step after which the budget was used up."""
    sweep_cost_usd: float | None = None
    """Of probes, starts and trials; None where no price is known."""
    proof: Proven | None = None
    """That the published model scores as it did in training, and how long that took."""
    disturbances: tuple[str, ...] = ()
    """Why the actual time may not be that of a quiet machine."""

    @property
    def is_comparable(self) -> bool:
        """Whether predicted and actual time are of the same work."""
        is_whole = not self.resumed and self.stopped_at is None
        return is_whole and self.predicted_time_s is not None

    @property
    def time_error(self) -> float | None:
        """Actual over predicted time, minus 1."""
        if self.predicted_time_s is None or not self.is_comparable:
            return None
        return self.actual_time_s / self.predicted_time_s.mean - 1

    @property
    def is_within_interval(self) -> bool | None:
        """Whether the actual time lies in the predicted interval."""
        if self.predicted_time_s is None or not self.is_comparable:
            return None
        return self.predicted_time_s.low <= self.actual_time_s <= self.predicted_time_s.high

    @property
    def actual_memory_gib(self) -> float | None:
        """Peak of the largest worker."""
        return self.speed.peak_memory_gib if self.speed else None


def write_receipt(
    run_id: str,
    winner: Winner,
    fit: FitResult,
    sweep_time_s: float,
    sweep_cost_usd: float | None = None,
) -> Receipt:
    """Compare a winner's prediction with the fit that followed."""
    placement: Placement = winner.candidate.placement
    paid_s = fit.duration_s + (fit.proof.seconds if fit.proof else 0.0)
    prediction = winner.prediction
    return Receipt(
        run=run_id,
        winner=winner.candidate.id,
        predicted_time_s=prediction.time_s if prediction else None,
        actual_time_s=fit.duration_s,
        predicted_cost_usd=prediction.cost_usd if prediction else None,
        actual_cost_usd=_cost(placement, paid_s),
        sweep_time_s=sweep_time_s,
        metrics=fit.checkpoint.metrics,
        simulated=placement.simulated,
        resumed=fit.resumed_from > 0,
        speed=fit.speed,
        sku=placement.sku,
        phases=prediction.phases if prediction else None,
        memory=winner.candidate.memory,
        probed_memory_gib=prediction.peak_memory_gib if prediction else None,
        projections=fit.projections,
        stopped_at=fit.stopped_at,
        sweep_cost_usd=sweep_cost_usd,
        proof=fit.proof,
        disturbances=disturbances(fit.speed),
    )


def _cost(placement: Placement, seconds: float) -> float | None:
    price = placement.price_usd_per_hour
    return None if price is None else price * seconds / 3600
