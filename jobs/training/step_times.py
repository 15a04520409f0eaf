"""Timed steps of a probe, and the mean step of a whole run that follows from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

Z_95 = 1.959964
"""Half-width of a 95 % interval of a normal distribution in standard deviations."""
LEAST_FOR_SLOPE = 6
"""Steps from which on time is fitted to width; of fewer the plain mean is taken."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Optimizer steps that were timed, in order."""

    widths: tuple[int, ...]
    """Padded tokens of each row of a step."""
    seconds: tuple[float, ...]
    windows: tuple[int, ...]
    """Steps of each window; neighbouring steps share disturbances, windows hardly do."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with the half-width of its 95 % interval."""

    value: float
    half_width: float


def mean_over(times: StepTimes, steps_of_width: Mapping[int, int]) -> Mean:
    """Mean seconds of a step of the whole run; `steps_of_width` says how many are how wide.

    Steps of dynamically padded batches differ in width, and a short probe sees another mix than the
    run. Ordinary least squares of time against width moves the probe's mean to the run's mix. The
    half-width is the larger one of two: from single steps, and from windows, which tells when
    neighbouring steps are disturbed together.
    """
    slope, rest = _fit(times)
    spread = np.array(times.widths, float)
    shift = mean_width(steps_of_width) - float(spread.mean())
    leverage = shift**2 / float(((spread - spread.mean()) ** 2).sum()) if slope else 0.0
    half_width = max(
        _half_width(rest, 2 if slope else 1, leverage),
        _half_width(_window_means(rest, times.windows), 1, 0.0),
    )
    return Mean(float(rest.mean()) + slope * shift, half_width)


def is_steady(times: StepTimes, tolerance: float) -> bool:
    """Whether the last two windows are equally fast, widths accounted for.

    They may differ by a share of `tolerance`, or by what the scatter of their steps explains.
    """
    if len(times.windows) < 2:
        return False
    _, rest = _fit(times)
    last, before = times.windows[-1], times.windows[-2]
    later, earlier = rest[-last:], rest[-last - before : -last]
    chance = math.hypot(_standard_error(later), _standard_error(earlier))
    return bool(abs(later.mean() - earlier.mean()) <= max(tolerance * rest.mean(), chance))


def _fit(times: StepTimes) -> tuple[float, Values]:
    """Seconds per token of width, and each step's seconds as if it had been of the mean width."""
    spread, seconds = np.array(times.widths, float), np.array(times.seconds)
    spread -= spread.mean()
    variation = float((spread**2).sum())
    if len(seconds) < LEAST_FOR_SLOPE or variation == 0:
        return 0.0, seconds
    slope = max(0.0, float((spread * seconds).sum()) / variation)
    return slope, seconds - slope * spread


def mean_width(steps_of_width: Mapping[int, int]) -> float:
    """Padded tokens of a row, averaged over the steps of a run."""
    steps = sum(steps_of_width.values())
    return sum(width * count for width, count in steps_of_width.items()) / steps


def _window_means(values: Values, windows: tuple[int, ...]) -> Values:
    stops = np.cumsum(windows)
    pairs = zip(stops, windows, strict=True)
    return np.array([values[stop - size : stop].mean() for stop, size in pairs])


def _standard_error(values: Values) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _half_width(values: Values, fitted: int, leverage: float) -> float:
    """Of the mean of values around a line with `fitted` parameters; 0 when there are too few."""
    freedom = len(values) - fitted
    if freedom < 1:
        return 0.0
    deviation = math.sqrt(float(((values - values.mean()) ** 2).sum()) / freedom)
    return student_95(freedom) * deviation * math.sqrt(1 / len(values) + leverage)


def student_95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t (Abramowitz and Stegun, 26.7.5)."""
    z = Z_95
    terms = (
        z,
        (z**3 + z) / 4 / freedom,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96 / freedom**2,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / freedom**3,
    )
    return sum(terms)
