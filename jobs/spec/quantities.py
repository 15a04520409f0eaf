"""Values with their own notation: durations, cadences, bounds, accelerators and metrics."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from jobs.errors import shown

LONGEST_DURATION = timedelta(days=36_500)
"""Longer ones are slips of the pen, and more than the operating system's clocks can wait for."""
SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

LARGEST_PLAIN = 1e6
"""Metrics from here on are written as a power of ten."""

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"({_NUMBER})\s*(ms|s|m|h|d)")
_CADENCE = re.compile(rf"({_NUMBER})\s*(epochs?|steps?)")
_BOUND = re.compile(r"(>=|<=|>|<)\s*(\S+)")
_ACCELERATORS = re.compile(r"([A-Za-z0-9][\w. -]*?)(?::(\d{1,5}))?")

DURATION_RULE = "a duration is a number with a unit: 500ms, 90s, 5m, 2h or 1d"
CADENCE_RULE = "write 0.25epoch, 100steps or a duration such as 5m"
CADENCE_OTHERS = "0.25epoch or a duration such as 5m"
BOUND_RULE = "write a comparison and a value, such as '>=0.915', '<=30m' or '<0.5%'"
ACCELERATORS_RULE = "write NAME or NAME:COUNT with a count of at least 1, such as A100-80GB:2"


def parse_duration(value: Any) -> timedelta:
    """Read `90s`, `5m`, `2h`; a bare number is an error because its unit is a guess."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{shown(value)} has no clear unit; {DURATION_RULE}")
    seconds = float(match[1]) * SECONDS_PER_UNIT[match[2]]
    if seconds > LONGEST_DURATION.total_seconds():
        raise ValueError(f"{shown(value)} is longer than any run; {DURATION_RULE}")
    return timedelta(seconds=seconds)


def parse_positive_duration(value: Any) -> timedelta:
    """Read a duration that something is divided by or limited to, so that none is too short."""
    duration = parse_duration(value)
    if duration <= timedelta(0):
        raise ValueError(f"{shown(value)} is no time at all; {DURATION_RULE}")
    return duration


def format_duration(value: timedelta) -> str:
    """Write a duration so that `parse_duration` reads the same value back."""
    seconds = value.total_seconds()
    for unit in ("d", "h", "m", "s"):
        if seconds >= SECONDS_PER_UNIT[unit] and seconds % SECONDS_PER_UNIT[unit] == 0:
            return f"{seconds / SECONDS_PER_UNIT[unit]:.0f}{unit}"
    return f"{format_number(value / timedelta(milliseconds=1))}ms"


def format_number(value: float) -> str:
    """Write a finite number without an exponent, so that reading it gives the same value."""
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "pattern": _DURATION.pattern, "examples": ["90s", "2h"]}),
]


PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(parse_positive_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "pattern": _DURATION.pattern, "examples": ["90s", "2h"]}),
]


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often something happens: every so many epochs, optimizer steps or seconds."""

    value: float
    unit: Literal["epoch", "step", "second"]

    def __str__(self) -> str:
        if self.unit == "second":
            return format_duration(timedelta(seconds=self.value))
        return f"{format_number(self.value)}{self.unit}" + ("s" if self.unit == "step" else "")


def parse_cadence(value: Any) -> Cadence:
    """Read `0.25epoch`, `100steps` or `5m`."""
    if isinstance(value, Cadence):
        return value
    match = _CADENCE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        try:
            cadence = Cadence(parse_duration(value).total_seconds(), "second")
        except ValueError:
            is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
            rule = f"write {value}steps, {CADENCE_OTHERS}" if is_count else CADENCE_RULE
            raise ValueError(f"{shown(value)} is no interval; {rule}") from None
    else:
        cadence = Cadence(float(match[1]), "epoch" if match[2].startswith("epoch") else "step")
    is_whole = cadence.unit != "step" or cadence.value % 1 == 0
    if not (0 < cadence.value < math.inf and is_whole):
        raise ValueError(f"{shown(value)} is not positive and whole in steps; {CADENCE_RULE}")
    return cadence


Every = Annotated[
    Cadence,
    BeforeValidator(parse_cadence),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["0.25epoch", "100steps", "5m"]}),
]


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that a result must keep; durations are held in seconds, percentages as shares."""

    comparison: Literal[">=", "<=", ">", "<"]
    value: float
    is_duration: bool = False

    def holds(self, measured: float) -> bool:
        """Say whether a measured value keeps this limit."""
        return {
            ">=": measured >= self.value,
            "<=": measured <= self.value,
            ">": measured > self.value,
            "<": measured < self.value,
        }[self.comparison]

    def __str__(self) -> str:
        if self.is_duration:
            return f"{self.comparison}{format_duration(timedelta(seconds=self.value))}"
        return f"{self.comparison}{format_number(self.value)}"


def parse_bound(value: Any) -> Bound:
    """Read `>=0.915`, `<=30m` or `<0.5%`."""
    if isinstance(value, Bound):
        return value
    match = _BOUND.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{shown(value)} is no limit; {BOUND_RULE}")
    comparison, text = match[1], match[2]
    if _DURATION.fullmatch(text):
        return Bound(comparison, parse_duration(text).total_seconds(), is_duration=True)  # type: ignore[arg-type]
    share = re.fullmatch(rf"(-?{_NUMBER})(%?)", text)
    if share is None or math.isinf(float(share[1])):
        raise ValueError(f"{shown(value)} is no limit; {BOUND_RULE}")
    return Bound(comparison, float(share[1]) / (100 if share[2] else 1))  # type: ignore[arg-type]


Limit = Annotated[
    Bound,
    BeforeValidator(parse_bound),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": [">=0.915", "<=30m", "<0.5%"]}),
]


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """So many devices of one kind, under the name the user typed."""

    name: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


def parse_accelerators(value: Any) -> AcceleratorRequest:
    """Read `A100-80GB:1` or `T4`; also the mapping `{T4: 4}` that YAML makes of `T4: 4`."""
    if isinstance(value, AcceleratorRequest):
        return value
    if isinstance(value, dict) and len(value) == 1:
        value = ":".join(str(part) for part in next(iter(value.items())))
    match = _ACCELERATORS.fullmatch(value.strip()) if isinstance(value, str) else None
    count = int(match[2] or 1) if match else 0
    if match is None or count < 1:
        raise ValueError(f"{shown(value)} names no accelerators; {ACCELERATORS_RULE}")
    return AcceleratorRequest(match[1].strip(), count)


Accelerators = Annotated[
    AcceleratorRequest,
    BeforeValidator(parse_accelerators),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["A100-80GB:1", "T4:4", "cpu:2"]}),
]


def format_metric(value: float) -> str:
    """A metric or a loss for people: 4 decimals, or a power of ten; what is not finite in words."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    return f"{value:.4f}" if abs(value) < LARGEST_PLAIN else f"{value:.3e}"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics by name in one line, such as `accuracy 0.9150, f1 0.9142`."""
    return ", ".join(f"{name} {format_metric(value)}" for name, value in metrics.items())
