"""Reads csv, tsv, JSON, parquet and CoNLL files into tables, with text exactly as it is written.

An ambiguous file is refused with its line, because a wrong guess would train on wrong rows.
"""

import csv
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jobs.errors import DataError, first_line, shown
from jobs.spec.data import format_of
from jobs.training.data import conll_files, json_files, table
from jobs.training.data.compressed import first_invalid_line, open_text
from jobs.training.data.table import Table

DELIMITERS = ",;\t|"
"""Possible delimiters of a csv file; the most frequent one in the header is used."""
UNREADABLE = (OSError, EOFError, zlib.error, ValueError, RecursionError)
"""Errors of incomplete archives, numbers with thousands of digits and deep nesting."""
LONGEST_FIELD = 2**31 - 1

csv.field_size_limit(LONGEST_FIELD)


def read_file(path: Path, name: str) -> Table:
    """Returns all rows of a file; `name` stands for it in errors.

    Raises:
        DataError: with the line or row that cannot be read.
    """
    readers: dict[str, Callable[[Path, str], Table]] = {
        ".csv": _read_csv,
        ".tsv": _read_tsv,
        ".jsonl": json_files.read_lines,
        ".ndjson": json_files.read_lines,
        ".json": json_files.read_json,
        ".parquet": _read_parquet,
        ".conll": conll_files.read,
    }
    try:
        found = readers[format_of(path.name)](path, name)
    except FileNotFoundError:
        raise DataError(f"{name} does not exist") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{name} line {first_invalid_line(path)} is not UTF-8; save the file as UTF-8"
        ) from None
    except UNREADABLE as error:
        raise DataError(f"{name} cannot be read: {first_line(error)}") from None
    if not len(found):
        raise DataError(f"{name} has no rows")
    return found


def read_files(places: Iterable[Path], most_bytes: int | None = None) -> Table | None:
    """Returns all rows of local files; None without files, or if they exceed `most_bytes`.

    Raises:
        DataError: with the line or row that cannot be read.
    """
    found = list(places)
    sizes = (place.stat().st_size for place in found if place.is_file())
    if not found or (most_bytes is not None and sum(sizes) > most_bytes):
        return None
    return table.joined({str(place): read_file(place, place.name) for place in found})


def _read_csv(path: Path, name: str) -> Table:
    with open_text(path) as lines:
        header = _record(lines)
    return _separated(path, name, _delimiter(header), csv.QUOTE_MINIMAL)


def _read_tsv(path: Path, name: str) -> Table:
    """Reads quotes as enclosing fields if that works for the whole file, else as plain text."""
    try:
        found = _separated(path, name, "\t", csv.QUOTE_MINIMAL)
    except DataError:
        return _separated(path, name, "\t", csv.QUOTE_NONE)
    ambiguous = _ambiguous_field(found)
    if ambiguous is None:
        return found
    try:
        _separated(path, name, "\t", csv.QUOTE_NONE)
    except DataError:
        return found
    raise DataError(
        f"{name}: {shown(ambiguous)} is one field if quotes enclose fields, and the ends of two"
        " rows if quotes are text; save the file as csv or jsonl"
    )


def _ambiguous_field(found: Table) -> str | None:
    """Returns a field that may be two rows with one quote each; None if there is none."""
    fields = (value for column in found.columns.values() for value in column)
    return next((value for value in fields if "\t" in value and "\n" in value), None)


def _separated(path: Path, name: str, delimiter: str, quoting: int) -> Table:
    with open_text(path) as lines:
        rows = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore[arg-type]
        try:
            header = next(rows, [])
            table.check_titles(header, name)
            found = [
                row for row in rows if row and _has_width(row, len(header), rows.line_num, name)
            ]
        except csv.Error as error:
            raise DataError(f"{name} line {rows.line_num}: {error}") from None
    columns = zip(*found, strict=True) if found else [()] * len(header)
    return Table({title: list(column) for title, column in zip(header, columns, strict=True)})


def _has_width(row: Sequence[str], width: int, line: int, name: str) -> bool:
    if len(row) != width:
        raise DataError(
            f"{name} line {line} has {len(row)} fields and the header {width}: {shown(row)};"
            " put fields that hold a separator into double quotes"
        )
    return True


def _record(lines: Iterable[str]) -> str:
    """Returns the first record of a csv file; quoted fields may contain line breaks."""
    record = ""
    for line in lines:
        record += line
        if record.count('"') % 2 == 0:
            break
    return record


def _delimiter(header: str) -> str:
    bare = "".join(part for number, part in enumerate(header.split('"')) if number % 2 == 0)
    return max(DELIMITERS, key=bare.count)


def _read_parquet(path: Path, name: str) -> Table:
    from jobs.training.data import arrow_tables  # imports pyarrow, which files of text need not

    return arrow_tables.read_parquet(path, name)
