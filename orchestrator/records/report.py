"""Renders the report of a run as one self-contained HTML file, and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jinja2
import pydantic_core

from jobs.spec.quantities import format_metric
from orchestrator.decisions.advice import advise
from orchestrator.decisions.measurement import Measurement, Prediction
from orchestrator.decisions.plan import Candidate, Plan
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Option, Winner
from orchestrator.records import charts, quality_view
from orchestrator.records.receipt import FitResult, Receipt
from orchestrator.records.receipt_text import show_cost, show_interval, show_time

PAGE, DATA = "report.html", "report.json"
"""Names of the report's files in a run, as HTML and as JSON."""
LEFT, TOP, WIDTH, HEIGHT = 60, 10, 640, 300
"""Frame of the Pareto plot, in SVG units."""
CURVE_HEIGHT = 160
MARGIN = 0.08
"""Free space around the points, as a share of their range."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """The content of a report; fields of stages that have not run are empty."""

    run: str
    metric: str
    plan: Plan
    winner: Winner
    measurements: tuple[Measurement, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    trials: tuple[TrialResult, ...] = ()
    fit: FitResult | None = None
    receipt: Receipt | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    """The sweep's limits on metrics, by name."""


def render(data: ReportData) -> str:
    """Returns the report as a self-contained HTML page, which opens offline."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("orchestrator.records"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(
        run=data.run,
        metric=data.metric,
        winner=data.winner,
        receipt=data.receipt,
        cards=_cards(data),
        plot=_pareto_plot(data),
        advice=advice_of(data),
        heat_maps=charts.heat_maps(data.plan, data.measurements),
        ranking=charts.ranking(data.plan, data.measurements),
        scaling=charts.scaling(data.plan, data.measurements),
        phases=_phases(data),
        saving=charts.saving_text(data.plan, data.predictions, data.measurements),
        learning=_learning_curves(data.trials),
        candidates=[_candidate_row(data, candidate) for candidate in data.plan.candidates],
        trials=[_trial_row(trial) for trial in data.trials],
        curve=_loss_curve(data.fit),
        tables=quality_view.tables(data.fit.quality if data.fit else None),
        quality_curves=quality_view.curves(data.fit.quality if data.fit else None),
        skipped=data.plan.skipped,
    )


def to_json(data: ReportData) -> bytes:
    """Returns the report as JSON."""
    value = {
        **{field.name: getattr(data, field.name) for field in fields(data)},
        "advice": advice_of(data),
        "heat_maps": charts.heat_maps(data.plan, data.measurements),
        "ranking": charts.ranking(data.plan, data.measurements),
        "scaling": charts.scaling(data.plan, data.measurements),
        "saving": charts.saving_text(data.plan, data.predictions, data.measurements),
    }
    return pydantic_core.to_json(value, indent=2)


def advice_of(data: ReportData) -> tuple[str, ...]:
    """Returns advice from the winner's measurement."""
    measured = next((m for m in data.measurements if m.candidate == data.winner.candidate.id), None)
    return advise(data.plan, data.winner, measured)


def _cards(data: ReportData) -> list[dict[str, str]]:
    cards = []
    if data.receipt:
        receipt = data.receipt
        cards = [
            {"label": "training took", "value": show_time(receipt.actual_time_s)},
            {"label": "predicted", "value": show_interval(receipt.predicted_time_s, show_time)},
            {"label": "training cost", "value": show_cost(receipt.actual_cost_usd)},
            {"label": "sweep took", "value": show_time(receipt.sweep_time_s)},
        ]
        if receipt.actual_memory_gib is not None:
            value = f"{receipt.actual_memory_gib:.1f} GiB"
            cards.append({"label": "peak memory of a worker", "value": value})
        cards += [{"label": k, "value": format_metric(v)} for k, v in receipt.metrics.items()]
    return cards


def _candidate_row(data: ReportData, candidate: Candidate) -> dict[str, Any]:
    measured = next((m for m in data.measurements if m.candidate == candidate.id), None)
    predicted = next((p for p in data.predictions if p.candidate == candidate.id), None)
    rate = charts.samples_per_s(candidate, measured) if measured else None
    step = measured.step_s.mean if measured and measured.step_s else None
    return {
        "id": candidate.id,
        "is_winner": candidate.id == data.winner.candidate.id,
        "step": "out of memory"
        if measured and not step
        else f"{step * 1000:.0f} ms"
        if step
        else "–",
        "rate": f"{rate:.0f}" if rate else "–",
        "time": show_interval(predicted.time_s, show_time) if predicted else "–",
        "cost": show_cost(predicted.cost_usd.mean if predicted.cost_usd else None)
        if predicted
        else "–",
        "memory": f"{candidate.memory.expected_gib:.1f} GiB" if candidate.memory else "unknown",
        "peak": f"{measured.peak_memory_gib:.1f} GiB"
        if measured and measured.peak_memory_gib
        else "–",
    }


def _trial_row(trial: TrialResult) -> dict[str, str]:
    params = ", ".join(f"{name} = {value}" for name, value in trial.params.items())
    last = trial.history[-1] if trial.history else None
    return {
        "params": params or "as in the job",
        "steps": str(last[0]) if last else "–",
        "score": format_metric(last[1]) if last else "–",
        "ended": trial.failure or ("stopped early" if trial.stopped_early else "complete"),
    }


def _pareto_plot(data: ReportData) -> dict[str, Any] | None:
    priced = all(option.cost_usd is not None for option in data.winner.options)
    points = [
        (option, (option.cost_usd if priced else option.time_s) or 0.0, option.quality)
        for option in data.winner.options
        if option.quality is not None
    ]
    if not points:
        return None
    x_low, x_high = _span([x for _, x, _ in points])
    y_low, y_high = _span([y for _, _, y in points if y is not None])
    show = show_cost if priced else show_time
    return {
        "x_label": "predicted cost of the full run" if priced else "predicted time of the full run",
        "y_label": f"{data.metric} of the trial",
        "points": [
            {
                "x": LEFT + WIDTH * (x - x_low) / (x_high - x_low),
                "y": TOP + HEIGHT * (y_high - (y or 0.0)) / (y_high - y_low),
                "kind": _kind(option, data.winner),
                "title": f"{option.id}: {show(x)}, {data.metric} {format_metric(y)}",
            }
            for option, x, y in points
        ],
        "x_ticks": _ticks(x_low, x_high, LEFT, WIDTH, show),
        "limits": _limits(data, y_low, y_high),
        "y_ticks": _ticks(y_high, y_low, TOP, HEIGHT, format_metric),
    }


def _phases(data: ReportData) -> tuple[charts.Bar, ...]:
    prediction = data.winner.prediction
    if prediction is None or prediction.phases is None:
        return ()
    return charts.phase_bars(prediction.phases, show_time)


def _learning_curves(trials: Sequence[TrialResult]) -> dict[str, Any] | None:
    """Returns a line of the compared metric over steps, for trials with several evaluations."""
    drawn = [trial for trial in trials if len(trial.history) > 1]
    if not drawn:
        return None
    scores = [score for trial in drawn for _, score in trial.history]
    low, high = _span(scores)
    last = max(step for trial in drawn for step, _ in trial.history)

    def points(trial: TrialResult) -> str:
        return " ".join(
            f"{LEFT + WIDTH * step / last:.1f},"
            f"{TOP + CURVE_HEIGHT * (high - score) / (high - low):.1f}"
            for step, score in trial.history
        )

    lines = [{"points": points(t), "title": _trial_row(t)["params"]} for t in drawn]
    return {"lines": lines, "low": format_metric(low), "high": format_metric(high), "steps": last}


def _limits(data: ReportData, low: float, high: float) -> list[dict[str, float]]:
    """Returns the position of the job's limit on the compared metric in the plot."""
    bound = data.limits.get(data.metric)
    if bound is None or not low <= bound <= high:
        return []
    return [{"y": TOP + HEIGHT * (high - bound) / (high - low)}]


def _kind(option: Option, winner: Winner) -> str:
    is_winner = option.candidate == winner.candidate.id and option.params == winner.params
    return "winner" if is_winner else "pareto" if option.is_pareto else "other"


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * MARGIN or abs(high) * MARGIN or 1.0
    return low - room, high + room


def _ticks(
    first: float, last: float, start: float, length: float, show: Any
) -> list[dict[str, Any]]:
    shares = (0.05, 0.35, 0.65, 0.95)
    return [{"at": start + length * s, "text": show(first + (last - first) * s)} for s in shares]


def _loss_curve(fit: FitResult | None) -> dict[str, Any] | None:
    if fit is None or len(fit.losses) < 2:
        return None
    losses = [loss for _, loss in fit.losses]
    low, high = min(losses), max(losses) or 1.0
    scale = (high - low) or 1.0
    points = [
        f"{LEFT + WIDTH * i / (len(losses) - 1):.1f},{TOP + CURVE_HEIGHT * (high - y) / scale:.1f}"
        for i, y in enumerate(losses)
    ]
    return {
        "points": " ".join(points),
        "low": format_metric(low),
        "high": format_metric(high),
        "steps": fit.losses[-1][0],
    }
