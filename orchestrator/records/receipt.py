"""The receipt of a run: predicted against actual time, cost and memory."""

from dataclasses import dataclass

from cluster.memory_estimate import MemoryEstimate
from cluster.placement import Placement, resized
from jobs.training.events import BestKept, CheckpointRef, Metered, Proven
from jobs.training.harness import HarnessResult
from jobs.training.quality import QualityReport
from orchestrator.decisions.measurement import Interval, Phases, disturbances
from orchestrator.decisions.select import Winner


@dataclass(frozen=True, slots=True)
class Projection:
    """The total time of a fit, projected after a share of its steps."""

    share: float
    time_s: float


@dataclass(frozen=True, slots=True)
class FitResult:
    """A trained model and how it went."""

    checkpoint: CheckpointRef
    labels: tuple[str, ...]
    steps: int
    duration_s: float
    """Wall time of this attempt, including the start of the worker group, without the proof."""
    resumed_from: int
    """Optimizer steps that an earlier attempt had completed."""
    losses: tuple[tuple[int, float], ...]
    """Pairs of optimizer step and loss."""
    evaluations: tuple[tuple[int, float], ...]
    """Pairs of optimizer step and the first metric."""
    micro_batch_size: int = 0
    """Final micro batch; smaller than the winner's after running out of memory."""
    speed: Metered | None = None
    """Speed of its steps; None if no step was left."""
    stopped_at: int | None = None
    """Step at which the budget was used up; None if it trained to the end."""
    best: BestKept | None = None
    """The earlier evaluation whose weights the model has; None if it has the last ones."""
    projections: tuple[Projection, ...] = ()
    """Projected total times during the fit."""
    proof: Proven | None = None
    """Proof that the saved model scores as in training; None for a model of an older release."""
    run: str = ""
    """Id of the run that trained it."""
    quality: QualityReport | None = None
    """What the last evaluation found; None for tasks without such a report, and older releases."""
    harness: HarnessResult | None = None
    """What tasks of lm-evaluation-harness measured; None for jobs without."""

    @property
    def last_step(self) -> int:
        """Step after which training ended."""
        return self.stopped_at or (self.best.step if self.best else self.steps)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Predicted and actual time, cost and quality of a run."""

    run: str
    winner: str
    predicted_time_s: Interval | None
    """None if the job has no sweep."""
    actual_time_s: float
    """Wall time of the fit, including the start of the worker group."""
    predicted_cost_usd: Interval | None
    actual_cost_usd: float | None
    """Cost of the same time; None where no price is known."""
    sweep_time_s: float
    metrics: dict[str, float]
    simulated: bool
    """Whether accelerators were simulated, so that times and prices mean nothing."""
    resumed: bool
    """Whether training was resumed, so that the actual time covers only its last part."""
    speed: Metered | None = None
    """Speed of the steps."""
    sku: str = ""
    phases: Phases | None = None
    """Predicted time by phase."""
    memory: MemoryEstimate | None = None
    """Planned memory of one worker."""
    probed_memory_gib: float | None = None
    """Peak memory that the probe measured."""
    projections: tuple[Projection, ...] = ()
    stopped_at: int | None = None
    """Step at which the budget was used up."""
    best: BestKept | None = None
    """The earlier evaluation whose weights the model has; None if it has the last ones."""
    sweep_cost_usd: float | None = None
    """Cost of probes, starts and trials; None where no price is known."""
    proof: Proven | None = None
    """Proof that the published model scores as in training, and its duration."""
    proof_cost_usd: float | None = None
    """Cost of the proof, which no prediction has; None where no price is known, and in a receipt of
    an older release, whose actual cost has it too."""
    harness: HarnessResult | None = None
    """What tasks of lm-evaluation-harness measured, and its duration; None for jobs without."""
    harness_cost_usd: float | None = None
    """Cost of its one device; None where no price is known."""
    disturbances: tuple[str, ...] = ()
    """Reasons why the actual time may differ from that on a quiet machine."""
    compiling: str = ""
    """Whether `train.compile: auto` compiles its steps, and why; empty without a GPU or `auto`."""

    @property
    def is_comparable(self) -> bool:
        """Whether predicted and actual time cover the same work."""
        is_early = self.stopped_at is not None or bool(self.best and self.best.is_early)
        is_whole = not self.resumed and not is_early
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
    def own_metrics(self) -> dict[str, float]:
        """The metrics on the job's evaluation rows, without those of the harness."""
        others = self.harness.values if self.harness else {}
        return {name: value for name, value in self.metrics.items() if name not in others}

    @property
    def actual_memory_gib(self) -> float | None:
        """Largest peak memory of the workers; None without a speed measurement."""
        return self.speed.peak_memory_gib if self.speed else None


def write_receipt(
    run_id: str,
    winner: Winner,
    fit: FitResult,
    sweep_time_s: float,
    sweep_cost_usd: float | None = None,
) -> Receipt:
    """Returns the receipt of a fit, with the winner's prediction."""
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
        sku=placement.sku,
        phases=prediction.phases if prediction else None,
        memory=winner.candidate.memory,
        probed_memory_gib=prediction.peak_memory_gib if prediction else None,
        projections=fit.projections,
        stopped_at=fit.stopped_at,
        best=fit.best,
        sweep_cost_usd=sweep_cost_usd,
        proof=fit.proof,
        proof_cost_usd=_cost(placement, fit.proof.seconds) if fit.proof else None,
        harness=fit.harness,
        harness_cost_usd=_cost(resized(placement, 1), fit.harness.seconds) if fit.harness else None,
        disturbances=disturbances(fit.speed),
        compiling=winner.compiling,
    )


def _cost(placement: Placement, seconds: float) -> float | None:
    price = placement.price_usd_per_hour
    return None if price is None else price * seconds / 3600
