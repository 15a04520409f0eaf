"""Writes a table as JSON lines, which the readers read back as they were."""

import json
from collections.abc import Iterator

from jobs.training.data import labels
from jobs.training.data.table import Table


def to_json_lines(table: Table) -> bytes:
    """Returns all rows as UTF-8 text, with the names of classes in place of their numbers."""
    return b"".join(_lines(table))


def _lines(table: Table) -> Iterator[bytes]:
    columns = {name: labels.named(table, name) for name in table.columns}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        try:
            yield json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n"
        except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
            yield json.dumps(row, default=str).encode() + b"\n"
