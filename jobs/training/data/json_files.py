"""Reads JSON and JSON lines into tables, with numbers exactly as they are written."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.errors import DataError, shown
from jobs.training.data.compressed import open_text
from jobs.training.data.conversations import is_message
from jobs.training.data.table import Table

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches the start of an escaped surrogate, which is one half of a character."""


class _Number(float):
    """A number with a fraction that keeps its text."""

    text: str

    def __new__(cls, text: str) -> "_Number":
        made = super().__new__(cls, text)
        made.text = text
        return made


def read_lines(path: Path, name: str) -> Table:
    """Reads an object from each line; `name` stands for the file in errors.

    Raises:
        DataError: with the line that is not an object.
    """
    rows = []
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_object(_loads(line, f"{name} line {number}"), f"{name} line {number}"))
    return _of_rows(rows, name)


def read_json(path: Path, name: str) -> Table:
    """Reads a list of objects, an object of columns, or an object from each line.

    `name` stands for the file in errors.

    Raises:
        DataError: with the line or row that cannot be used.
    """
    with open_text(path) as stream:
        text = stream.read()
    try:
        value = json.loads(text, parse_float=_Number)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return read_lines(path, name)
        raise DataError(f"{name} line {error.lineno}: not valid JSON: {error.msg}") from None
    _check_characters(value, text, name)
    rows = _rows_of(value) if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise DataError(
            f"{name} holds neither a list of objects nor columns of equal length; write one object"
            " on each line and name the file .jsonl"
        )
    return _of_rows([_object(row, f"{name} row {n}") for n, row in enumerate(rows, 1)], name)


def _rows_of(value: Mapping[str, Any]) -> list[Any] | None:
    """Returns the rows of an object; None if its columns differ in length.

    The object is a list of rows below one key, columns as lists or as pandas writes them, or a
    single row.
    """
    parts = list(value.values())
    only = parts[0] if len(parts) == 1 else None
    if isinstance(only, list) and any(map(is_message, only)):
        return [value]  # a conversation
    if isinstance(only, list) and all(isinstance(part, dict) for part in only):
        return only
    if parts and all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts):
        parts = [list(part.values()) for part in parts]
    if not any(isinstance(part, list | dict) for part in parts):
        return [value]
    if not all(isinstance(part, list) and len(part) == len(parts[0]) for part in parts):
        return None
    return [dict(zip(value, row, strict=True)) for row in zip(*parts, strict=True)]


def _loads(text: str, place: str) -> Any:
    try:
        value = json.loads(text, parse_float=_Number)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not valid JSON: {error.msg}: {shown(text.strip())}") from None
    except RecursionError:
        raise DataError(f"{place}: nested too deeply") from None
    _check_characters(value, text, place)
    return value


def _check_characters(value: Any, text: str, place: str) -> None:
    """Raises DataError for a lone surrogate, which no tokenizer can read."""
    if not SURROGATE.search(text):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(
            f"{place}: {half} is half of a character, and the other half does not follow; remove it"
        ) from None


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{place}: {shown(value)} is not an object of columns")
    return value


def _of_rows(rows: Sequence[Mapping[str, Any]], name: str) -> Table:
    titles = dict.fromkeys(itertools.chain.from_iterable(rows))
    columns = {title: [_as_written(row.get(title)) for row in rows] for title in titles}
    for title, column in columns.items():
        rows_of_kind = {
            isinstance(value, str): row for row, value in enumerate(column, 1) if value is not None
        }
        if len(rows_of_kind) == 2:
            row = min(rows_of_kind.values())
            raise DataError(
                f"{name} row {row}: column {shown(title)} holds {shown(column[row - 1])}, and"
                " values of another kind in other rows"
            )
    return Table(columns)


def _as_written(value: Any) -> Any:
    """Returns the text of a scalar; a list or an object unchanged."""
    match value:
        case bool():
            return str(value).lower()
        case _Number():
            return value.text
        case int() | float():
            return str(value)
        case _:
            return value
