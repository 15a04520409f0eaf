"""Plots of a report: ticks that differ, lines that can be told apart, values of any size."""

import itertools
import math
import random

import pytest

from orchestrator.records import plots
from orchestrator.records.plots import Axis, Plot, Point, Series


def curves(*lines: list[tuple[float, float]]) -> Plot:
    """A plot with a line for each list of points."""
    series = [Series(f"line {number}", tuple(points)) for number, points in enumerate(lines)]
    found = plots.curves("title", "steps", "loss", series)
    assert found is not None
    return found


def is_readable(axis: Axis) -> bool:
    """Whether an axis has two or more ticks whose texts differ and rise with their places."""
    places, texts = [tick.at for tick in axis.ticks], [tick.text for tick in axis.ticks]
    values = [float(text.replace(",", "")) for text in texts]
    is_in_order = sorted(places) == places or sorted(places, reverse=True) == places
    return len(set(texts)) == len(texts) >= 2 and values == sorted(values) and is_in_order


@pytest.mark.parametrize("seed", range(20))
def test_ticks_never_round_to_the_same_text(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        low = draw.choice((-1, 1, 0)) * 10 ** draw.uniform(-12, 12)
        high = low + 10 ** draw.uniform(-3, 3) * (abs(low) or 1.0)
        scattered = plots.scatter("t", "x", "y", [Point(low, high, "a"), Point(high, low, "b")])
        assert scattered is not None
        for plot in (scattered, curves([(0, low), (1, high)])):
            assert is_readable(plot.x), plot.x
            assert is_readable(plot.y), plot.y


def test_steps_are_whole_numbers() -> None:
    plot = curves([(1, 0.5), (2, 0.6), (3, 0.7)])
    assert [tick.text for tick in plot.x.ticks] == ["1", "2", "3"]


def test_values_that_are_all_the_same_stand_in_the_middle() -> None:
    plot = curves([(0, 0.5), (10, 0.5)])
    assert plot.lines[0].points == "84.0,132.0 644.0,132.0"
    assert is_readable(plot.y)


def test_lines_can_be_told_apart() -> None:
    plot = curves(*([(0, float(number)), (1, 2.0 * number)] for number in range(1, 31)))
    styles = {(line.colour, line.dash) for line in plot.lines}
    assert len(styles) == len(plot.lines) == plots.MOST_LINES
    assert plot.note == "6 more are in the table."
    assert plot.lines[4].name == "line 4: 10.0000"


@pytest.mark.parametrize(
    ("values", "label", "ticks"),
    [
        ([2.0, 0.02], "loss, logarithmic", ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]),
        ([1e9, 1.0], "loss, logarithmic", ["1", "100", "10000", "1e+06", "1e+08"]),
        ([3.0, 1.0], "loss", ["1.0", "1.5", "2.0", "2.5", "3.0"]),
        ([2.0, 0.0], "loss", ["0", "0.5", "1.0", "1.5", "2.0"]),
    ],
)
def test_values_far_apart_have_a_logarithmic_axis(
    values: list[float], label: str, ticks: list[str]
) -> None:
    plot = curves(list(enumerate(values)))
    assert plot.y.label == label
    assert [tick.text for tick in plot.y.ticks] == ticks


def test_a_long_line_is_drawn_by_means_and_what_is_not_finite_is_left_out() -> None:
    points = [(float(step), float(step % 2)) for step in range(10_000)] + [(10_000.0, math.nan)]
    plot = curves(points, [(0.0, math.inf), (5.0, 1.0)])
    (line,) = plot.lines
    places = [tuple(map(float, pair.split(","))) for pair in line.points.split()]
    assert len(places) == plots.MOST_POINTS
    assert {y for _, y in places} == {132.0}
    assert all(a[0] < b[0] for a, b in itertools.pairwise(places))
    assert plots.curves("t", "x", "y", [Series("one", ((1, 2.0),))]) is None
    assert plots.scatter("t", "x", "y", [Point(math.nan, 1.0, "a")]) is None


@pytest.mark.parametrize(
    "values",
    [
        (1e300, 1e9, 1e308),
        (0.0, 1.79e308, 1.0),
        (-1e308, 1e308, 0.0, 2.0),
        (0.0, 1e-323),
        (1e-310, 1e-10),
        (5e-324, 5e-324),
        (0.1, math.nextafter(0.1, 1.0)),
        (-1.0, -math.nextafter(1.0, 2.0)),
    ],
)
def test_values_of_any_size_are_drawn(values: tuple[float, ...]) -> None:
    pairs = list(enumerate(values))
    found = plots.curves("t", "steps", "loss", [Series("one", tuple(pairs))])
    scattered = plots.scatter("t", "x", "y", [Point(v, v, "a") for v in values])
    square = plots.scatter("t", "x", "y", [Point(v, -v, "a") for v in values], is_square=True)
    for plot in filter(None, (found, scattered, square)):
        assert is_readable(plot.x), plot.x
        assert is_readable(plot.y), plot.y
        assert max(len(tick.text) for tick in plot.y.ticks) <= 10


def test_a_square_plot_has_the_same_range_on_both_axes_and_the_diagonal() -> None:
    plot = plots.scatter("t", "x", "y", [Point(0.2, 0.4, "a")], is_square=True)
    assert plot is not None
    assert [tick.text for tick in plot.x.ticks] == [tick.text for tick in plot.y.ticks]
    assert plot.diagonal == "84.0,252.0 324.0,12.0"
    assert plot.summary == "y over x: a"
