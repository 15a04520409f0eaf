"""Reads csv, tsv, JSON and parquet files into tables, text exactly as it is written.

A file that can be read in two ways is refused with the line, because a guess trains on wrong rows.
"""

import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from jobs.errors import DataError, first_line, shown
from jobs.spec.data import format_of
from jobs.training.data import table
from jobs.training.data.conversations import is_message
from jobs.training.data.table import Table

DELIMITERS = ",;\t|"
"""What may separate the fields of a csv file; the header shows which one does."""
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, RecursionError, pa.ArrowException)
"""What torn archives, numbers of thousands of digits and deep nesting raise."""
LONGEST_FIELD = 2**31 - 1
DATASETS_NOTE = b"huggingface"
"""Key of what `datasets` notes in the metadata of a parquet file."""
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How half of a character that needs two halves (a surrogate) begins in JSON."""

csv.field_size_limit(LONGEST_FIELD)


def read_file(path: Path, name: str) -> Table:
    """All rows of a file; `name` stands for it in errors.

    Raises:
        DataError: with the line or row that cannot be read.
    """
    readers: dict[str, Callable[[Path, str], Table]] = {
        ".csv": _read_csv,
        ".tsv": _read_tsv,
        ".jsonl": _read_lines,
        ".ndjson": _read_lines,
        ".json": _read_json,
        ".parquet": _read_parquet,
    }
    try:
        found = readers[format_of(path.name)](path, name)
    except FileNotFoundError:
        raise DataError(f"{name} does not exist") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{name} line {_first_wrong_line(path)} is not UTF-8; save the file as UTF-8"
        ) from None
    except UNREADABLE as error:
        raise DataError(f"{name} cannot be read: {first_line(error)}") from None
    if not len(found):
        raise DataError(f"{name} has no rows")
    return found


def read_files(places: Iterable[Path], most_bytes: int | None = None) -> Table | None:
    """All rows of files of this machine; None if there are none, or more bytes than `most_bytes`.

    Raises:
        DataError: with the line or row that cannot be read.
    """
    found = list(places)
    sizes = (place.stat().st_size for place in found if place.is_file())
    if not found or (most_bytes is not None and sum(sizes) > most_bytes):
        return None
    return table.joined({str(place): read_file(place, place.name) for place in found})


def _read_csv(path: Path, name: str) -> Table:
    with _text(path) as lines:
        header = _record(lines)
    return _separated(path, name, _delimiter(header), csv.QUOTE_MINIMAL)


def _read_tsv(path: Path, name: str) -> Table:
    """With quotes around fields if the whole file has them so, else with quotes as plain text."""
    try:
        found = _separated(path, name, "\t", csv.QUOTE_MINIMAL)
    except DataError:
        return _separated(path, name, "\t", csv.QUOTE_NONE)
    torn = _torn(found)
    if torn is None:
        return found
    try:
        _separated(path, name, "\t", csv.QUOTE_NONE)
    except DataError:
        return found
    raise DataError(
        f"{name}: {shown(torn)} is one field if quotes enclose fields, and the ends of two rows if"
        " they are text; save the file as csv or jsonl"
    )


def _torn(found: Table) -> str | None:
    """A field that a quote of one row and a quote of a later one may only seem to enclose."""
    fields = (value for column in found.columns.values() for value in column)
    return next((value for value in fields if "\t" in value and "\n" in value), None)


def _separated(path: Path, name: str, delimiter: str, quoting: int) -> Table:
    with _text(path) as lines:
        rows = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore[arg-type]
        try:
            header = next(rows, [])
            _check_header(header, name)
            found = [
                row for row in rows if row and _has_width(row, len(header), rows.line_num, name)
            ]
        except csv.Error as error:
            raise DataError(f"{name} line {rows.line_num}: {error}") from None
    columns = zip(*found, strict=True) if found else [()] * len(header)
    return Table({title: list(column) for title, column in zip(header, columns, strict=True)})


def _check_header(header: Sequence[str], name: str) -> None:
    twice = [title for title in header if header.count(title) > 1]
    if twice:
        raise DataError(
            f"{name}: its header has column {shown(twice[0])} twice; rename one of them"
        )


def _has_width(row: Sequence[str], width: int, line: int, name: str) -> bool:
    if len(row) != width:
        raise DataError(
            f"{name} line {line} has {len(row)} fields and the header {width}: {shown(row)};"
            " put fields that hold a separator into double quotes"
        )
    return True


def _record(lines: Iterable[str]) -> str:
    """The first record of a csv file, whose fields may hold line breaks between quotes."""
    record = ""
    for line in lines:
        record += line
        if record.count('"') % 2 == 0:
            break
    return record


def _delimiter(header: str) -> str:
    bare = "".join(part for number, part in enumerate(header.split('"')) if number % 2 == 0)
    return max(DELIMITERS, key=bare.count)


def _read_lines(path: Path, name: str) -> Table:
    rows = []
    with _text(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_object(_loads(line, f"{name} line {number}"), f"{name} line {number}"))
    return _of_rows(rows, name)


def _read_json(path: Path, name: str) -> Table:
    """A list of objects, an object of columns, or an object on each line."""
    with _text(path) as stream:
        text = stream.read()
    try:
        value = json.loads(text, parse_float=_Number)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return _read_lines(path, name)
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
    """Rows below one key, columns as lists or as pandas writes them, or one row by itself."""
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


def _read_parquet(path: Path, name: str) -> Table:
    found = pyarrow.parquet.read_table(path)
    _check_header(found.column_names, name)
    return table.of_arrow(found, _class_names(found.schema))


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Names of the classes of each ClassLabel column, which `datasets` notes in its files."""
    note = json.loads((schema.metadata or {}).get(DATASETS_NOTE, b"{}"))
    features = note.get("info", {}).get("features", {})
    return {
        name: tuple(features[name]["names"])
        for name in schema.names
        if pa.types.is_integer(schema.field(name).type)
        and features.get(name, {}).get("_type") == "ClassLabel"
    }


class _Number(float):
    """A number with a fraction, as it was written."""

    text: str

    def __new__(cls, text: str) -> "_Number":
        made = super().__new__(cls, text)
        made.text = text
        return made


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
    """Raise DataError for half of a character, which no tokenizer can read."""
    if not ESCAPED_HALF.search(text):
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
                f"{name} row {row}: column {shown(title)} holds {shown(column[row - 1])}, and other"
                " kinds of values elsewhere"
            )
    return Table(columns)


def _as_written(value: Any) -> Any:
    """The text of a scalar; a list or an object as it is."""
    match value:
        case bool():
            return str(value).lower()
        case _Number():
            return value.text
        case int() | float():
            return str(value)
        case _:
            return value


@contextlib.contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    with _bytes(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
        yield text


def _bytes(path: Path) -> Any:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path)
        case ".zst":
            return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
        case _:
            return path.open("rb")


def _first_wrong_line(path: Path) -> int:
    with _bytes(path) as stream:
        for number, line in enumerate(stream.read().split(b"\n"), 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return number
    return 0
