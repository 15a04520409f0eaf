"""What the last evaluation found, beyond single numbers: tables, curves and thresholds.

It is saved with the model, in `quality.json`, and shown in a run's report. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

FILE = "quality.json"
Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below a title."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_matrix: bool = False
    """Whether the cells beside the first are counts of one kind, shaded by their share of the row.
    """


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve, and the number of rows or answers that it stands for."""

    x: float
    y: float
    count: int


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a curve that is the diagonal where a model is perfect."""

    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Tables, curves and thresholds of a model on the evaluation rows."""

    tables: tuple[Table, ...] = ()
    curves: tuple[Curve, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Score from which on a label is given, by label; empty for tasks without thresholds."""


QUALITY = TypeAdapter(QualityReport)


def write(report: QualityReport, folder: Path) -> None:
    """Writes the report into a model's folder."""
    (folder / FILE).write_bytes(QUALITY.dump_json(report, indent=1) + b"\n")


def read(folder: Path) -> QualityReport | None:
    """Returns the report in a model's folder; None if there is none that this release can read."""
    try:
        return QUALITY.validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return None
