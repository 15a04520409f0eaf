"""Writes a table as JSON lines, which `readers` reads back unchanged."""

import json
from collections.abc import Iterator

from jobs.training.data import labels
from jobs.training.data.table import Table


def to_json_lines(table: Table) -> bytes:
    """Returns all rows as JSON lines in UTF-8, with class names in place of numbers."""
    return b"".join(_lines(table))


def _lines(table: Table) -> Iterator[bytes]:
    columns = {name: labels.named(table, name) for name in table.columns}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        try:
            yield json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n"
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can write
            yield json.dumps(row, default=str).encode() + b"\n"
