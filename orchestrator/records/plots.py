"""Plots of a report as values of an SVG: axes with round ticks, lines that can be told apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jobs.spec.quantities import format_metric

LEFT, TOP, WIDTH, HEIGHT = 84, 12, 560, 240
"""Frame of a plot, in SVG units."""
COLOURS = 8
DASHES = ("none", "6 3", "2 3")
MOST_LINES = COLOURS * len(DASHES)
MOST_POINTS = 500
"""Most points of a line; a longer one is drawn by means of neighbours."""
MARGIN = 0.06
"""Empty space between the outermost values and the frame, as a share of their range."""
TICKS = 6
FAR = 10.0
"""From this ratio of the largest to the smallest value on, an axis is logarithmic."""
EQUAL = 1e-6
"""Values that differ by less than this share of the larger one are drawn as one."""
LARGEST, SMALLEST = 1e300, 1e-300
"""Bounds of values that are drawn: beyond the first they are left out, below the second 0."""
LARGEST_PLAIN, SMALLEST_PLAIN = 1e6, 1e-5
"""Ticks outside of these bounds are written with powers of ten."""

Kind = Literal["winner", "pareto", "other"]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot before it is drawn."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a plot before it is drawn."""

    x: float
    y: float
    title: str
    kind: Kind = "pareto"
    radius: float = 5.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of an axis: its place in SVG units, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis with its label, which names the unit."""

    label: str
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line in SVG units."""

    name: str
    points: str
    colour: int
    dash: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in SVG units."""

    x: float
    y: float
    title: str
    kind: Kind
    radius: float


@dataclass(frozen=True, slots=True)
class Plot:
    """What the report's template draws."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    limit: float | None = None
    """Height of a horizontal line."""
    diagonal: str = ""
    """Points of the line at which both axes have the same value."""
    note: str = ""

    @property
    def summary(self) -> str:
        """The plot in words, for screen readers."""
        names = [line.name for line in self.lines] + [mark.title for mark in self.marks]
        return f"{self.y.label} over {self.x.label}: {'; '.join(names)}"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to SVG units."""

    low: float
    high: float
    start: float
    length: float
    is_log: bool = False
    is_whole: bool = False
    """Whether ticks are whole numbers."""

    def at(self, value: float) -> float:
        low, high = self._of(self.low), self._of(self.high)
        return round(self.start + self.length * (self._of(value) - low) / (high - low), 1)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.is_log else value

    def ticks(self) -> tuple[Tick, ...]:
        values = (
            _powers(self.low, self.high)
            if self.is_log
            else _round(self.low, self.high, 1.0 if self.is_whole else 0.0)
        )
        texts = [f"{value:g}" for value in values] if self.is_log else _texts(values)
        return tuple(Tick(self.at(v), text) for v, text in zip(values, texts, strict=True))


def curves(
    title: str, x_label: str, y_label: str, series: Sequence[Series], limit: float | None = None
) -> Plot | None:
    """Returns lines over one axis; None if no line has two finite points.

    The y axis is logarithmic if the values are positive and lie far apart.
    """
    finite = [Series(each.name, _drawable(each.points)) for each in series]
    drawn = [each for each in finite if len(each.points) > 1]
    if not drawn:
        return None
    x = _scale([x for each in drawn for x, _ in each.points], LEFT, WIDTH, room=0.0)
    x = replace(x, is_whole=x.high - x.low > 1)  # steps
    values = [y for each in drawn for _, y in each.points]
    y = _scale(values, TOP + HEIGHT, -HEIGHT, may_be_log=True)
    shown = drawn[:MOST_LINES]
    left_out = len(drawn) - len(shown)
    lines = tuple(
        Line(
            f"{each.name}: {format_metric(each.points[-1][1])}",
            " ".join(f"{x.at(a)},{y.at(b)}" for a, b in _thinned(each.points)),
            number % COLOURS,
            DASHES[number // COLOURS],
        )
        for number, each in enumerate(shown)
    )
    return Plot(
        title,
        Axis(x_label, x.ticks()),
        Axis(f"{y_label}, logarithmic" if y.is_log else y_label, y.ticks()),
        lines,
        limit=y.at(limit) if limit is not None and y.low <= limit <= y.high else None,
        note=f"{left_out} more are in the table." if left_out else "",
    )


def scatter(
    title: str,
    x_label: str,
    y_label: str,
    points: Sequence[Point],
    *,
    limit: float | None = None,
    is_square: bool = False,
) -> Plot | None:
    """Returns points over two axes; None without any.

    With `is_square` both axes have the same range, 0 to 1 if that holds all values, and the
    diagonal is drawn.
    """
    points = [
        replace(p, x=_or_zero(p.x), y=_or_zero(p.y))
        for p in points
        if abs(p.x) <= LARGEST and abs(p.y) <= LARGEST
    ]
    if not points:
        return None
    xs, ys = [point.x for point in points], [point.y for point in points]
    if is_square:
        both = [*xs, *ys]
        both = [0.0, 1.0] if min(both) >= 0 and max(both) <= 1 else both
        xs = ys = both
    room = 0.0 if is_square else MARGIN
    x = _scale(xs, LEFT, HEIGHT if is_square else WIDTH, room=room)
    y = _scale(ys, TOP + HEIGHT, -HEIGHT, room=room)
    corners = ((value, value) for value in (x.low, x.high)) if is_square else ()
    return Plot(
        title,
        Axis(x_label, x.ticks()),
        Axis(y_label, y.ticks()),
        marks=tuple(Mark(x.at(p.x), y.at(p.y), p.title, p.kind, p.radius) for p in points),
        limit=y.at(limit) if limit is not None and y.low <= limit <= y.high else None,
        diagonal=" ".join(f"{x.at(a)},{y.at(b)}" for a, b in corners),
    )


def in_unit_of(seconds: Sequence[float]) -> tuple[float, str]:
    """Returns the seconds of the unit in which times of this size are shown, and its name."""
    longest = max(seconds, default=0.0)
    return (1.0, "s") if longest < 120 else (60.0, "min") if longest < 7200 else (3600.0, "h")


def _drawable(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((x, _or_zero(y)) for x, y in points if abs(y) <= LARGEST)


def _or_zero(value: float) -> float:
    return 0.0 if abs(value) < SMALLEST else value


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return points
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], sum(y / len(part) for _, y in part)) for part in parts]


def _scale(
    values: Sequence[float],
    start: float,
    length: float,
    *,
    room: float = MARGIN,
    may_be_log: bool = False,
) -> _Scale:
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high / low >= FAR:
        factor = (high / low) ** room
        if math.isfinite(high * factor):
            return _Scale(low / factor, high * factor, start, length, is_log=True)
    if high - low <= EQUAL * max(abs(low), abs(high), SMALLEST):  # one value, in the middle
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    more = (high - low) * room
    return _Scale(low - more, high + more, start, length)


def _round(low: float, high: float, least: float = 0.0) -> list[float]:
    """Returns about TICKS round numbers between two bounds, at least `least` apart."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    step = max(step, least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Returns the ticks of a logarithmic axis: powers of ten, or 1, 2 and 5 times them."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    inside = [10.0**power for power in powers if 10.0**power >= low]
    if len(inside) < 3:
        inside = [size * 10.0**power for power in powers for size in (1, 2, 5)]
        return [value for value in inside if low <= value <= high]
    return inside[:: math.ceil(len(inside) / TICKS)]


def _texts(values: Sequence[float]) -> list[str]:
    """Returns numbers as text, with the fewest digits that tell them apart."""
    largest = max((abs(value) for value in values), default=0.0)
    smallest = min((abs(value) for value in values if value), default=1.0)
    is_plain = largest < LARGEST_PLAIN and smallest >= SMALLEST_PLAIN
    for digits in range(17):
        texts = [f"{value:,.{digits}f}" if is_plain else f"{value:.{digits}e}" for value in values]
        is_exact = all(
            math.isclose(float(text.replace(",", "")), value, rel_tol=1e-6, abs_tol=largest * 1e-9)
            for text, value in zip(texts, values, strict=True)
        )
        if is_exact and len(set(texts)) == len(texts):
            break
    return ["0" if value == 0 else text for text, value in zip(texts, values, strict=True)]
