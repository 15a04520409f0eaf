"""Renders the report of a run as one self-contained HTML file, and as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jinja2
import pydantic_core

from jobs.spec.quantities import format_metric, format_metrics
from orchestrator.decisions.advice import advise
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Measurement, Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.search import TrialResult
from orchestrator.decisions.select import Option, Winner
from orchestrator.records import charts, plots, quality_view
from orchestrator.records.receipt import FitResult, Receipt
from orchestrator.records.receipt_text import harness_text, show_cost, show_interval, show_time

PAGE, DATA = "report.html", "report.json"
"""Names of the report's files in a run, as HTML and as JSON."""
STEPS = "optimizer steps"


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
        lead=lead(data),
        cards=_cards(data),
        plot=_pareto_plot(data),
        advice=advice_of(data),
        heat_maps=charts.heat_maps(data.plan, data.measurements),
        ranking=charts.ranking(data.plan, data.measurements),
        scaling=charts.scaling(data.plan, data.measurements),
        phases=_phases(data),
        saving=charts.saving_text(data.plan, data.predictions, data.measurements),
        learning=_learning_curves(data),
        candidates=[_candidate_row(data, candidate) for candidate in data.plan.candidates],
        trials=[_trial_row(trial) for trial in data.trials],
        curves=_fit_curves(data),
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


def lead(data: ReportData) -> str:
    """Returns the run in a few sentences, for readers who know neither Winnow nor training."""
    winner, receipt = data.winner, data.receipt
    sentences = []
    if data.measurements:
        tried = f" and compared {len(data.trials)} short trainings" if data.trials else ""
        sentences.append(
            f"Winnow measured {len(data.measurements)} of {len(data.plan.candidates)} combinations"
            f" of accelerator, precision and batch size{tried}."
        )
    sentences.append(f"{winner} was chosen ({winner.reason}).")
    if winner.compiling:
        sentences.append(f"Its steps are {winner.compiling}.")
    if receipt:
        sentences.append(_training(receipt))
        if receipt.sweep_time_s:
            cost = receipt.sweep_cost_usd
            paid = "" if cost is None else f" and cost {show_cost(cost)}"
            took = show_time(receipt.sweep_time_s)
            sentences.append(f"The comparison before it took {took}{paid}.")
        found = format_metrics(receipt.own_metrics)
        sentences.append(f"On the evaluation rows the model reaches {found}.")
        sentences += _harness(receipt)
    return " ".join(sentences)


def _training(receipt: Receipt) -> str:
    what = "The last part of training, after it was resumed," if receipt.resumed else "Training"
    cost, error = receipt.actual_cost_usd, receipt.time_error
    paid = "" if cost is None else f" and cost {show_cost(cost)}"
    text = f"{what} took {show_time(receipt.actual_time_s)}{paid}."
    if error is not None:
        word = "longer" if error > 0 else "shorter"
        off = "as predicted" if round(abs(error), 2) == 0 else f"{abs(error):.0%} {word}"
        text += f" The time was {off}{'' if off == 'as predicted' else ' than predicted'}."
    if receipt.stopped_at is not None:
        text += f" It stopped at step {receipt.stopped_at}, when its budget was used up."
    return text


def _harness(receipt: Receipt) -> list[str]:
    found, cost = receipt.harness, receipt.harness_cost_usd
    if found is None:
        return []
    paid = "" if cost is None else f" and cost {show_cost(cost)}"
    took = f"lm-evaluation-harness took {show_time(found.seconds)}{paid}"
    if found.failure:
        return [f"{took}, and measured nothing, because {found.failure}."]
    reached = format_metrics(found.values)
    return [f"{took}: {harness_text(found)}. There the model reaches {reached}."]


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
        if receipt.sweep_cost_usd is not None:
            cards.append({"label": "sweep cost", "value": show_cost(receipt.sweep_cost_usd)})
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
        "step": measured.fault
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


def _pareto_plot(data: ReportData) -> plots.Plot | None:
    options = [option for option in data.winner.options if option.quality is not None]
    priced = all(option.cost_usd is not None for option in options)
    size, unit = plots.in_unit_of([option.time_s or 0.0 for option in options])
    show = show_cost if priced else show_time
    points = []
    for option in options:
        value = (option.cost_usd if priced else option.time_s) or 0.0
        kind, quality = _kind(option, data.winner), option.quality or 0.0
        text = f"{option.id}: {show(value)}, {data.metric} {format_metric(quality)}"
        points.append(plots.Point(value if priced else value / size, quality, text, kind))
    name = "predicted cost of the full run" if priced else "predicted time of the full run"
    return plots.scatter(
        f"Quality against {name}",
        f"{name} ({'USD' if priced else unit})",
        f"{data.metric} of the trial",
        points,
        limit=data.limits.get(data.metric),
    )


def _phases(data: ReportData) -> tuple[charts.Bar, ...]:
    prediction = data.winner.prediction
    if prediction is None or prediction.phases is None:
        return ()
    return charts.phase_bars(prediction.phases, show_time)


def _learning_curves(data: ReportData) -> plots.Plot | None:
    """Returns a line of the compared metric over steps, for trials with several evaluations."""
    trials = sorted(data.trials, key=lambda trial: trial.params != data.winner.params)
    series = [plots.Series(_trial_row(trial)["params"], trial.history) for trial in trials]
    title = f"Trials as they learnt: {data.metric}"
    return plots.curves(title, STEPS, data.metric, series, data.limits.get(data.metric))


def _fit_curves(data: ReportData) -> list[plots.Plot]:
    """Returns the winner's loss and compared metric over steps."""
    if data.fit is None:
        return []
    loss = plots.Series("training loss", data.fit.losses)
    learnt = plots.Series(data.metric, data.fit.evaluations)
    title = f"The winner as it learnt: {data.metric}"
    found = (
        plots.curves("Training loss of the winner", STEPS, "loss", [loss]),
        plots.curves(title, STEPS, data.metric, [learnt]),
    )
    return [plot for plot in found if plot]


def _kind(option: Option, winner: Winner) -> plots.Kind:
    is_winner = option.candidate == winner.candidate.id and option.params == winner.params
    return "winner" if is_winner else "pareto" if option.is_pareto else "other"
