"""Computes a report's charts of the sweep: heat maps, rankings, scaling and phases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Measurement, Phases, Prediction
from orchestrator.decisions.plan import Plan

IDEAL_SPEEDUP = {2: 1.8, 4: 3.2}
"""Typical speedup of data-parallel fine-tuning, by the number of GPUs of one machine."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell of one candidate in a heat map."""

    text: str
    strength: float | None
    """Value relative to the best of the map, in (0, 1]; None without a measurement."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A table with a row for each placement and precision, and a column for each micro batch.

    Compiled steps have rows of their own.
    """

    title: str
    columns: tuple[int, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart."""

    label: str
    text: str
    share: float
    """Length relative to the longest bar."""


def samples_per_s(candidate: Candidate, measured: Measurement) -> float | None:
    """Returns the rows per second of all workers; None after a failure."""
    if measured.step_s is None:
        return None
    batch = candidate.micro_batch_size * candidate.accumulation * candidate.placement.workers
    return batch / measured.step_s.mean


def heat_maps(plan: Plan, measurements: Sequence[Measurement]) -> tuple[HeatMap, ...]:
    """Returns the heat maps of throughput and, if prices are known, of cost."""
    found = {measured.candidate: measured for measured in measurements}

    def rate(candidate: Candidate) -> float | None:
        measured = found.get(candidate.id)
        return samples_per_s(candidate, measured) if measured else None

    def cheapness(candidate: Candidate) -> float | None:
        price, fast = candidate.placement.price_usd_per_hour, rate(candidate)
        return fast / price if fast and price else None

    def usd(value: float) -> str:
        return f"${1e6 / value / 3600:.3g}"

    maps = [_heat_map("samples per second", plan, found, rate, lambda v: f"{v:,.0f}")]
    if any(cheapness(candidate) for candidate in plan.candidates):
        maps.append(_heat_map("USD per million samples", plan, found, cheapness, usd))
    return tuple(maps) if found else ()


def _heat_map(
    title: str,
    plan: Plan,
    found: dict[str, Measurement],
    value: Callable[[Candidate], float | None],
    show: Callable[[float], str],
) -> HeatMap:
    values = {candidate.id: value(candidate) for candidate in plan.candidates}
    best = max((v for v in values.values() if v), default=1.0)
    columns = tuple(sorted({candidate.micro_batch_size for candidate in plan.candidates}))
    names = dict.fromkeys(_row_name(candidate) for candidate in plan.candidates)
    by_place = {(_row_name(c), c.micro_batch_size): c for c in plan.candidates}

    def cell(candidate: Candidate | None) -> Cell:
        if candidate is None:
            return Cell("", None)
        number, measured = values[candidate.id], found.get(candidate.id)
        if number is None:
            text, why = (measured.fault, measured.why_given_up) if measured else ("–", "")
            return Cell(text, None, why)
        return Cell(show(number), number / best, measured.why_given_up if measured else "")

    return HeatMap(
        title,
        columns,
        tuple(
            (name, tuple(cell(by_place.get((name, column))) for column in columns))
            for name in names
        ),
    )


def _row_name(candidate: Candidate) -> str:
    words = (candidate.placement.name, candidate.precision)
    return " ".join((*words, "compiled") if candidate.compiled else words)


def ranking(plan: Plan, measurements: Sequence[Measurement]) -> tuple[Bar, ...]:
    """Returns a bar of samples per dollar for each candidate, best first; empty without prices."""
    found = {measured.candidate: measured for measured in measurements}
    values: list[tuple[str, float]] = []
    for candidate in plan.candidates:
        measured, price = found.get(candidate.id), candidate.placement.price_usd_per_hour
        fast = samples_per_s(candidate, measured) if measured else None
        if fast and price:
            values.append((candidate.id, fast * 3600 / price))
    values.sort(key=lambda pair: -pair[1])
    return tuple(
        Bar(name, f"{value / 1e6:.3g} million samples a dollar", value / values[0][1])
        for name, value in values
    )


def scaling(plan: Plan, measurements: Sequence[Measurement]) -> tuple[Bar, ...]:
    """Returns a bar for each candidate with several workers: its speedup over one worker.

    Micro batch and precision are the same in both.
    """
    found = {measured.candidate: measured for measured in measurements}
    rates: dict[tuple[str, int, str], dict[int, float]] = {}
    for candidate in plan.candidates:
        measured = found.get(candidate.id)
        fast = samples_per_s(candidate, measured) if measured else None
        if fast and not candidate.compiled:
            key = (candidate.placement.sku, candidate.micro_batch_size, candidate.precision)
            rates.setdefault(key, {})[candidate.placement.workers] = fast
    bars = []
    for (sku, micro, precision), of_workers in rates.items():
        for workers, fast in of_workers.items():
            if workers > 1 and 1 in of_workers:
                times = fast / of_workers[1]
                usual = IDEAL_SPEEDUP.get(workers)
                beside = f"; {usual:g}x is usual" if usual else ""
                text = f"{times:.2f}x of one{beside}"
                bars.append(Bar(f"{sku}:{workers}/{micro}/{precision}", text, times / workers))
    return tuple(bars)


def phase_bars(phases: Phases, show: Callable[[float], str]) -> tuple[Bar, ...]:
    """Returns a bar for the predicted time of each phase of a full run."""
    values = [(field.name, float(getattr(phases, field.name))) for field in fields(phases)]
    longest = max(value for _, value in values) or 1.0
    return tuple(Bar(name, show(value), value / longest) for name, value in values)


def saving_text(
    plan: Plan, predictions: Sequence[Prediction], measurements: Sequence[Measurement]
) -> str:
    """Returns a sentence that compares the device hours of probes and of a full grid.

    The full grid trains every candidate to the end; for a probe that stopped early, only its
    predicted steps count. Empty without measurements.
    """
    devices = {candidate.id: candidate.placement.workers for candidate in plan.candidates}
    whole = sum(p.time_s.mean * devices[p.candidate] for p in predictions)
    done = {p.candidate for p in predictions}
    for measured in measurements:
        if measured.candidate not in done and measured.step_s:
            whole += measured.step_s.mean * measured.steps * devices[measured.candidate]
    used = sum(m.probe_s * devices[m.candidate] for m in measurements)
    if not whole:
        return ""
    return (
        f"probes took {used / 3600:.3g} device hours; training every candidate to the end would"
        f" take {whole / 3600:.3g}"
    )
