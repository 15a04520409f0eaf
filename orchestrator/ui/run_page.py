"""What the dashboard shows of one run, from the values that its stages recorded."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from orchestrator.decisions import budget
from orchestrator.decisions.candidate import Candidate, Skipped
from orchestrator.decisions.measurement import Interval, Launch, Measurement, Phases
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Option, Winner
from orchestrator.records import charts, inputs, runs, summary
from orchestrator.records.receipt import FitResult, Receipt
from orchestrator.records.receipt_text import receipt_text
from orchestrator.records.run_log import Line
from orchestrator.records.runs import Notes, Run
from orchestrator.records.summary import Summary, recorded
from orchestrator.ui import live
from orchestrator.ui.live import Curves, Said

STARTS = ("owned", "resumed")
"""Events that a process notes when it takes a run up."""


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A candidate of the plan, with what its probe measured."""

    id: str
    verdict: str
    memory_gib: float | None
    """Expected memory of one worker."""
    price_usd_per_hour: float | None
    is_winner: bool
    step_s: float | None
    samples_per_s: float | None
    peak_memory_gib: float | None
    time_s: float | None
    """Predicted time of the full run."""
    cost_usd: float | None
    """Predicted cost of the full run."""
    note: str


@dataclass(frozen=True, slots=True)
class Spent:
    """Time and cost until now, or until the end of the run."""

    time_s: float | None
    """Wall time since the run was created, with what it waited."""
    cost_usd: float | None
    """Of sweep and training; None where no price is known."""
    is_final: bool
    """Whether the cost is that of the receipt, and not estimated from prices and times."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """One run; empty or None for stages that have no result yet."""

    summary: Summary
    job: str
    """The job file."""
    inputs: Mapping[str, str]
    stages: Mapping[str, str]
    """Time at which each stage was recorded, in ISO 8601."""
    candidates: tuple[CandidateRow, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...]
    reason: str
    """Why the winner won."""
    options: tuple[Option, ...]
    chosen: Option | None
    """The option that won."""
    phases: Phases | None
    predicted_time_s: Interval | None
    predicted_cost_usd: Interval | None
    trials: tuple[TrialResult, ...]
    curves: Curves
    is_simulated: bool
    """Whether accelerators are simulated, so that times and prices mean nothing."""
    spent: Spent
    receipt: str


def page_of(run: Run, said: Said, now: datetime) -> RunPage:
    """Read the files of a run; a damaged file counts as absent."""
    notes = run.notes
    plan, winner = recorded(run, "plan", Plan), recorded(run, "winner", Winner)
    receipt, fit = recorded(run, "receipt", Receipt), recorded(run, "fit", FitResult)
    trials, launches = run.intact("trials", TrialResult), run.intact("launches", Launch)
    measured = {each.candidate: each for each in run.intact("measurements", Measurement)}
    options = winner.options if winner else ()
    predicted = winner.prediction if winner else None
    shown = summary.summarize(run)
    probes = tuple(measured.values())
    sweep_usd = budget.sweep_cost_usd(plan, probes, launches, trials) if plan else 0.0
    return RunPage(
        summary=shown,
        job=(run.kept(runs.SPEC_FILE) or b"").decode(errors="replace"),
        inputs=inputs.kept(run),
        stages={each["stage"]: each["time"] for each in notes if each["event"] == "finished"},
        candidates=tuple(_row(each, measured, winner) for each in plan.candidates) if plan else (),
        skipped=plan.skipped if plan else (),
        remarks=plan.remarks if plan else (),
        reason=winner.reason if winner else "",
        options=options,
        chosen=next((each for each in options if winner and _is_chosen(each, winner)), None),
        phases=predicted.phases if predicted else None,
        predicted_time_s=predicted.time_s if predicted else None,
        predicted_cost_usd=predicted.cost_usd if predicted else None,
        trials=trials,
        curves=_curves(fit, said),
        is_simulated=any(each.placement.simulated for each in plan.candidates) if plan else False,
        spent=_spent(_Moments.of(notes, said.lines), shown, winner, sweep_usd, now),
        receipt=receipt_text(receipt) if receipt else "",
    )


def _row(
    candidate: Candidate, measured: Mapping[str, Measurement], winner: Winner | None
) -> CandidateRow:
    found, options = measured.get(candidate.id), winner.options if winner else ()
    option = next((each for each in options if each.candidate == candidate.id), None)
    return CandidateRow(
        id=candidate.id,
        verdict=candidate.verdict,
        memory_gib=candidate.memory.expected_gib if candidate.memory else None,
        price_usd_per_hour=candidate.placement.price_usd_per_hour,
        is_winner=winner is not None and winner.candidate.id == candidate.id,
        step_s=found.step_s.mean if found and found.step_s else None,
        samples_per_s=charts.samples_per_s(candidate, found) if found else None,
        peak_memory_gib=found.peak_memory_gib if found else None,
        time_s=option.time_s if option else None,
        cost_usd=option.cost_usd if option else None,
        note=(found.failure or found.why_given_up) if found else candidate.reason,
    )


def _is_chosen(option: Option, winner: Winner) -> bool:
    return option.candidate == winner.candidate.id and option.params == winner.params


def _curves(fit: FitResult | None, said: Said) -> Curves:
    """Returns the curves of the fit's result, else those that its log has so far."""
    of_log = live.curves_of(said.lines)
    if fit is None or not fit.evaluations:
        return Curves(fit.losses, of_log.metrics) if fit else of_log
    last = fit.evaluations[-1][1]
    name = next((name for name, v in fit.checkpoint.metrics.items() if v == last), "metric")
    return Curves(fit.losses, of_log.metrics or {name: fit.evaluations})


@dataclass(frozen=True, slots=True)
class _Moments:
    """What a run did when: pairs of a time and an event, which is empty for a line of the log."""

    every: tuple[tuple[datetime, str], ...]
    chosen: datetime | None
    """When the winner was recorded."""

    @classmethod
    def of(cls, notes: Notes, lines: Sequence[Line]) -> "_Moments":
        noted = [(datetime.fromisoformat(each["time"]), each) for each in notes]
        moments = [(time, each["event"]) for time, each in noted]
        moments += [(line.time, "") for line in lines]
        chosen = next((time for time, each in noted if each.get("stage") == "winner"), None)
        return cls(tuple(sorted(moments)), chosen)

    def worked_s(self, begin: datetime, end: datetime) -> float:
        """Returns the seconds of a period in which the run's process lived.

        It did not between an end, or the last sign of one that died, and the next start.
        """
        within = [(begin, "chosen"), *(each for each in self.every if begin < each[0] < end)]
        return sum(
            (after[0] - before[0]).total_seconds()
            for before, after in itertools.pairwise([*within, (end, "now")])
            if before[1] not in runs.ENDS and after[1] not in STARTS
        )


def _spent(
    moments: _Moments, shown: Summary, winner: Winner | None, sweep_usd: float, now: datetime
) -> Spent:
    """Returns the time since the run was created, and what sweep and training have cost."""
    end = now if shown.state == "running" or not moments.every else moments.every[-1][0]
    time_s = (end - shown.created).total_seconds() if shown.created else None
    if shown.cost_usd is not None or winner is None:
        return Spent(time_s, shown.cost_usd or sweep_usd or None, shown.cost_usd is not None)
    price = winner.candidate.placement.price_usd_per_hour
    if price is None or moments.chosen is None:
        return Spent(time_s, sweep_usd or None, is_final=False)
    fit_s = moments.worked_s(moments.chosen, end)
    return Spent(time_s, sweep_usd + price * fit_s / 3600, is_final=False)
