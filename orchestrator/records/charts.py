"""What a report draws of the sweep: heat maps, rankings, scaling and phases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from orchestrator.decisions.plan import Candidate, Plan
from orchestrator.decisions.predict import Measurement, Phases, Prediction

IDEAL_SPEEDUP = {2: 1.8, 4: 3.2}
"""What practice reports of data parallel fine-tuning on that many GPUs of one machine."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One candidate in a heat map."""

    text: str
    strength: float | None
    """0 for the worst, 1 for the best of the map; None where nothing was measured."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Placements and precisions down, micro batches across."""

    title: str
    columns: tuple[int, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A length with its words."""

    label: str
    text: str
    share: float
    """Of the longest bar."""


def samples_per_s(candidate: Candidate, measured: Measurement) -> float | None:
    """Rows a second over all workers; None after running out of memory."""
    if measured.step_s is None:
        return None
    batch = candidate.micro_batch_size * candidate.accumulation * candidate.placement.workers
    return batch / measured.step_s.mean


def heat_maps(plan: Plan, measurements: Sequence[Measurement]) -> tuple[HeatMap, ...]:
    """Throughput, and cost of a million samples where prices are known."""
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
    names = dict.fromkeys((c.placement.name, c.precision) for c in plan.candidates)
    by_place = {(c.placement.name, c.precision, c.micro_batch_size): c for c in plan.candidates}

    def cell(candidate: Candidate | None) -> Cell:
        if candidate is None:
            return Cell("", None)
        number, measured = values[candidate.id], found.get(candidate.id)
        if number is None:
            return Cell("out of memory" if measured else "–", None)
        note = "given up" if measured and measured.is_given_up else ""
        return Cell(show(number), number / best, note)

    return HeatMap(
        title,
        columns,
        tuple(
            (" ".join(name), tuple(cell(by_place.get((*name, column))) for column in columns))
            for name in names
        ),
    )


def ranking(plan: Plan, measurements: Sequence[Measurement]) -> tuple[Bar, ...]:
    """Candidates by samples a dollar, best first; empty without prices."""
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
    """Throughput of several workers over that of one, at the same micro batch and precision."""
    found = {measured.candidate: measured for measured in measurements}
    rates: dict[tuple[str, int, str], dict[int, float]] = {}
    for candidate in plan.candidates:
        measured = found.get(candidate.id)
        fast = samples_per_s(candidate, measured) if measured else None
        if fast:
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
    """Where the time of a full run is predicted to go."""
    values = [(field.name, float(getattr(phases, field.name))) for field in fields(phases)]
    longest = max(value for _, value in values) or 1.0
    return tuple(Bar(name, show(value), value / longest) for name, value in values)


def saving_text(
    plan: Plan, predictions: Sequence[Prediction], measurements: Sequence[Measurement]
) -> str:
    """How much of a full grid's accelerator time the probes took; empty before anything ran.

    The full grid trains every candidate to the end; of one that was given up, its steps count.
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
