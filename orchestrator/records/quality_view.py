"""The quality of a trained model as the report's page shows it: tables and curves."""

from collections.abc import Sequence
from typing import Any

from jobs.spec.quantities import format_metric
from jobs.training.quality import Cell, Curve, QualityReport, Table
from orchestrator.records import plots

LEAST_RADIUS, RADIUS = 2.0, 7.0
"""Radius of a point without rows, and what all rows add to it."""
OPEN_ROWS = 30
"""Most rows of a table that is open at first."""


def tables(quality: QualityReport | None) -> list[dict[str, Any]]:
    """Returns the tables with formatted cells; those of a matrix have a strength from 0 to 1."""
    return [_table(table) for table in quality.tables] if quality else []


def curves(quality: QualityReport | None) -> list[plots.Plot]:
    """Returns the curves as points beside the diagonal."""
    found = [_curve(curve) for curve in quality.curves if curve.points] if quality else []
    return [plot for plot in found if plot]


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": table.columns,
        "rows": [_cells(row, is_matrix=table.is_matrix) for row in table.rows],
        "is_matrix": table.is_matrix,
        "is_open": len(table.rows) <= OPEN_ROWS,
    }


def _cells(row: Sequence[Cell], *, is_matrix: bool) -> list[dict[str, Any]]:
    total = sum(cell for cell in row if not isinstance(cell, str)) if is_matrix else 0
    return [
        {
            "text": _text(cell),
            "is_text": isinstance(cell, str),
            "strength": cell / total if total and not isinstance(cell, str) else 0.0,
        }
        for cell in row
    ]


def _text(cell: Cell) -> str:
    return format_metric(cell) if isinstance(cell, float) else str(cell)


def _curve(curve: Curve) -> plots.Plot | None:
    most = max(point.count for point in curve.points)
    points = [
        plots.Point(
            point.x,
            point.y,
            f"{format_metric(point.x)}: {format_metric(point.y)}, {point.count} rows",
            radius=LEAST_RADIUS + RADIUS * point.count / most,
        )
        for point in curve.points
    ]
    return plots.scatter(curve.title, curve.x_label, curve.y_label, points, is_square=True)
