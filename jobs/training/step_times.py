"""Timed steps of a probe, and the mean step time of a whole run that they predict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

Z_95 = 1.959964
"""Half-width of a 95 % interval of a normal distribution in standard deviations."""
TOLERANCE = 0.02
"""Largest relative difference between two windows that count as equally fast."""
LEAST_FOR_SLOPE = 6
"""Least number of steps for a fit of time to width; fewer steps give the plain mean."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Timed optimizer steps, in order."""

    widths: tuple[int, ...]
    """Padded tokens of each row of a step."""
    seconds: tuple[float, ...]
    windows: tuple[int, ...]
    """Number of steps of each window; disturbances affect neighbouring steps alike, but windows
    hardly."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with the half-width of its 95 % interval."""

    value: float
    half_width: float


def mean_over(times: StepTimes, steps_of_width: Mapping[int, int]) -> Mean:
    """Predicts the mean seconds of a step of the whole run.

    `steps_of_width` has the run's number of steps by padded width.
    """
    return mean_at(times, mean_width(steps_of_width))


def mean_at(times: StepTimes, width: float) -> Mean:
    """Predicts the mean seconds of a step of a run whose steps have this mean padded width.

    A short probe has other shares of the widths than the run, so the measured mean is rescaled to
    the run's mean width by ordinary least squares of time against width. The half-width is the
    larger of two estimates: from single steps, and from windows, which includes disturbances of
    neighbouring steps.
    """
    slope, rest = _fit(times)
    spread = np.array(times.widths, float)
    shift = width - float(spread.mean())
    leverage = shift**2 / float(((spread - spread.mean()) ** 2).sum()) if slope else 0.0
    half_width = max(
        _half_width(rest, 2 if slope else 1, leverage),
        _half_width(_window_means(rest, times.windows), 1, 0.0),
    )
    return Mean(float(rest.mean()) + slope * shift, half_width)


def can_be_rescaled(times: StepTimes) -> bool:
    """Returns whether the steps suffice, and differ in width, for a fit of time to width."""
    return len(times.seconds) >= LEAST_FOR_SLOPE and len(set(times.widths)) > 1


def in_windows(widths: Sequence[int], seconds: Sequence[float], window_s: float) -> StepTimes:
    """Returns steps in windows of at least `window_s` seconds each; the last may be shorter."""
    sizes, spent_s = [0], 0.0
    for each_s in seconds:
        if spent_s >= window_s:
            sizes, spent_s = [*sizes, 0], 0.0
        sizes[-1] += 1
        spent_s += each_s
    return StepTimes(tuple(widths), tuple(seconds), tuple(sizes))


def is_steady(times: StepTimes) -> bool:
    """Returns whether the last two windows are equally fast, after correction for their widths.

    They may differ by the share TOLERANCE, or by the standard error of their difference.
    """
    if len(times.windows) < 2:
        return False
    _, rest = _fit(times)
    last, before = times.windows[-1], times.windows[-2]
    later, earlier = rest[-last:], rest[-last - before : -last]
    chance = math.hypot(_standard_error(later), _standard_error(earlier))
    return bool(abs(later.mean() - earlier.mean()) <= max(TOLERANCE * rest.mean(), chance))


def _fit(times: StepTimes) -> tuple[float, Values]:
    """Returns the seconds per token of width, and the steps' seconds rescaled to the mean width."""
    spread, seconds = np.array(times.widths, float), np.array(times.seconds)
    if not can_be_rescaled(times):
        return 0.0, seconds
    spread -= spread.mean()
    slope = max(0.0, float((spread * seconds).sum()) / float((spread**2).sum()))
    return slope, seconds - slope * spread


def mean_width(steps_of_width: Mapping[int, int]) -> float:
    """Returns the mean padded width over the steps of a run, in tokens."""
    steps = sum(steps_of_width.values())
    return sum(width * count for width, count in steps_of_width.items()) / steps


def _window_means(values: Values, windows: tuple[int, ...]) -> Values:
    stops = np.cumsum(windows)
    pairs = zip(stops, windows, strict=True)
    return np.array([values[stop - size : stop].mean() for stop, size in pairs])


def _standard_error(values: Values) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _half_width(values: Values, fitted: int, leverage: float) -> float:
    """Returns the 95 % half-width of the mean of residuals from a fit with `fitted` parameters.

    0 if there are too few values.
    """
    freedom = len(values) - fitted
    if freedom < 1:
        return 0.0
    deviation = math.sqrt(float(((values - values.mean()) ** 2).sum()) / freedom)
    return student_95(freedom) * deviation * math.sqrt(1 / len(values) + leverage)


def student_95(freedom: int) -> float:
    """Returns the two-sided 95 % quantile of Student's t.

    Source: Abramowitz and Stegun, 26.7.5.
    """
    z = Z_95
    terms = (
        z,
        (z**3 + z) / 4 / freedom,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96 / freedom**2,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / freedom**3,
    )
    return sum(terms)
