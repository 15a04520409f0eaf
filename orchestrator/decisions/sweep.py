"""What a sweep found."""

from dataclasses import dataclass

from orchestrator.decisions.measurement import Measurement, Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Winner


@dataclass(frozen=True, slots=True)
class Sweep:
    """The winner of a job, and what it was chosen from."""

    run: str
    """Id of the run that the sweep belongs to, which training continues."""
    plan: Plan
    """What was tried, and what was skipped."""
    measurements: tuple[Measurement, ...]
    """One for each candidate that was probed, in the order of the plan."""
    predictions: tuple[Prediction, ...]
    """One for each candidate whose probe ran to its end."""
    trials: tuple[TrialResult, ...]
    winner: Winner
    duration_s: float
    cost_usd: float = 0.0
    """Of probes, starts and trials, where prices are known."""
