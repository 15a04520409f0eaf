"""Compares runs: the fields in which their jobs differ, winners, metrics, times and costs."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from jobs.spec import JobSpec
from orchestrator.records import runs, summary
from orchestrator.records.receipt import Receipt
from orchestrator.records.runs import Run
from orchestrator.records.summary import Summary

Value = TypeVar("Value")
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What is compared of one run."""

    summary: Summary
    metrics: Mapping[str, float]
    """Every metric after training; empty before."""
    fields: Mapping[str, Scalar]
    """The job's fields by path, such as train.optimizer.lr, with defaults."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side; each tuple has one value for each run, in their order."""

    runs: tuple[Summary, ...]
    metrics: dict[str, tuple[float | None, ...]]
    fields: dict[str, tuple[Scalar, ...]]
    """Fields of the job in which the runs differ; None for a field that a job does not have."""


def profile(run: Run) -> Profile:
    """Read from the files of a run what is compared."""
    receipt = summary.recorded(run, "receipt", Receipt)
    return Profile(summary.summarize(run), receipt.metrics if receipt else {}, _fields_of(run))


def compare(profiles: Sequence[Profile]) -> Comparison:
    """Returns the runs side by side."""
    metrics = _aligned([each.metrics for each in profiles])
    fields = _aligned([each.fields for each in profiles])
    return Comparison(
        runs=tuple(each.summary for each in profiles),
        metrics=metrics,
        fields={path: values for path, values in fields.items() if _differ(values)},
    )


def _aligned(columns: Sequence[Mapping[str, Value]]) -> dict[str, tuple[Value | None, ...]]:
    names = dict.fromkeys(name for column in columns for name in column)
    return {name: tuple(column.get(name) for column in columns) for name in names}


def _differ(values: Sequence[Scalar]) -> bool:
    return any(value != values[0] for value in values)


def _fields_of(run: Run) -> dict[str, Scalar]:
    """Returns the fields of a run's job; of a job that this release cannot read, as written."""
    try:
        written: Any = yaml.safe_load(run.kept(runs.SPEC_FILE) or b"")
    except yaml.YAMLError:
        return {}
    with contextlib.suppress(ValidationError):
        written = JobSpec.model_validate(written).model_dump(mode="json")
    return dict(flatten(written))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Scalar]]:
    """Yields each scalar in mappings and lists with its path, such as resources.any_of.0.spot."""
    inside: Mapping[Any, Any] | None = None
    if isinstance(value, Mapping):
        inside = value
    elif isinstance(value, list):
        inside = dict(enumerate(value))
    if inside is None:
        yield path, value
        return
    for name, each in inside.items():
        yield from flatten(each, f"{path}.{name}" if path else str(name))
