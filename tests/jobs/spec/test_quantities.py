"""Durations, cadences, bounds, accelerators, metrics: what is read, refused and written."""

import math
import re
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.spec.quantities import (
    AcceleratorRequest,
    Bound,
    Cadence,
    format_duration,
    format_metric,
    format_metrics,
    parse_accelerators,
    parse_bound,
    parse_cadence,
    parse_duration,
)
from jobs.spec.serve import parse_gate_rule


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", [30, "30", "1:30", "-5s", "", None, "5 minutes", "1e9d", True])
def test_durations_without_a_clear_unit_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="number with a unit"):
        parse_duration(value)


@pytest.mark.parametrize("text", ["5ms", "90s", "5m", "2h", "1d"])
def test_durations_are_written_as_they_are_read(text: str) -> None:
    assert format_duration(parse_duration(text)) in (text, "90s")


@pytest.mark.parametrize(
    ("text", "cadence"),
    [
        ("0.25epoch", Cadence(0.25, "epoch")),
        ("2 epochs", Cadence(2, "epoch")),
        ("100steps", Cadence(100, "step")),
        ("5m", Cadence(300, "second")),
    ],
)
def test_cadences_are_in_epochs_steps_or_time(text: str, cadence: Cadence) -> None:
    assert parse_cadence(text) == cadence
    assert parse_cadence(str(cadence)) == cadence


NUMBERS = st.floats(1e-9, 1e30).map(lambda value: f"{value:.12f}")


@settings(deadline=None)
@given(NUMBERS, st.integers(1, 10**15), st.floats(0.001, 3e9), st.sampled_from([">=", "<"]))
def test_what_is_written_is_read_back_as_it_was(
    number: str, steps: int, seconds: float, comparison: str
) -> None:
    """Jobs are written and read again on their way to workers."""
    for text in (f"{number}epoch", f"{steps}steps", f"{seconds:.3f}s"):
        cadence = parse_cadence(text)
        assert parse_cadence(str(cadence)) == cadence
    duration = timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration
    for text in (number, f"{number}%", f"{seconds:.3f}s"):
        bound = parse_bound(f"{comparison}{text}")
        assert parse_bound(str(bound)) == bound


def test_numbers_beyond_all_bounds_are_refused() -> None:
    many = "9" * 400
    for read in (parse_duration, parse_cadence, parse_bound, parse_gate_rule):
        for unit in ("", "s", "d", "epoch", "steps", "%"):
            for start in ("", "<=", "accuracy>="):
                with pytest.raises(ValueError, match=re.escape("'")) as caught:
                    read(f"{start}{many}{unit}")
                assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["0epoch", "2.5steps", "often", 5, "0s"])
def test_cadences_must_be_positive_and_whole_in_steps(text: object) -> None:
    with pytest.raises(ValueError, match=r"0\.25epoch"):
        parse_cadence(text)


def test_bounds_hold_percentages_as_shares_and_durations_in_seconds() -> None:
    assert parse_bound("<0.5%") == Bound("<", 0.005)
    assert parse_bound("<= 30m") == Bound("<=", 1800, is_duration=True)
    assert parse_bound(">=0.9").holds(0.9)
    assert not parse_bound(">0.9").holds(0.9)


@pytest.mark.parametrize("text", ["0.9", "==0.9", ">=", ">=fast", 0.9])
def test_bounds_need_a_comparison_and_a_value(text: object) -> None:
    with pytest.raises(ValueError, match="write a comparison"):
        parse_bound(text)


@pytest.mark.parametrize(
    ("value", "request_"),
    [
        ("T4", AcceleratorRequest("T4", 1)),
        ("A100-80GB:2", AcceleratorRequest("A100-80GB", 2)),
        ({"T4": 4}, AcceleratorRequest("T4", 4)),
    ],
)
def test_accelerators_have_a_name_and_a_count(value: object, request_: AcceleratorRequest) -> None:
    assert parse_accelerators(value) == request_


@pytest.mark.parametrize("value", ["T4:0", "T4:-1", "T4:two", ":2", "", 4, {"T4": 1, "L4": 1}])
def test_accelerators_without_name_or_count_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="NAME:COUNT"):
        parse_accelerators(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.91503, "0.9150"),
        (0, "0.0000"),
        (-0.25, "-0.2500"),
        (12345.678, "12345.6780"),
        (1e6, "1.000e+06"),
        (-2.5e9, "-2.500e+09"),
        (1.23456e304, "1.235e+304"),
        (math.inf, "infinite"),
        (-math.inf, "minus infinite"),
        (math.nan, "not a number"),
    ],
)
def test_metrics_are_short_whatever_their_size(value: float, text: str) -> None:
    assert format_metric(value) == text
    assert format_metrics({"f1": 0.5, "loss": value}) == f"f1 0.5000, loss {text}"
