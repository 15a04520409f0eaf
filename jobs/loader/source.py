"""Parses YAML into plain values with the position of each, and refuses dangerous features.

Scalars follow the YAML 1.2 core schema: `on` and `1:30` are text, `3e-5` is a number. Aliases,
tags, several documents, deep nesting and large files are refused before any value is built, because
a kilobyte of aliases can expand to gigabytes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from jobs.errors import JobFileError, Problem
from jobs.loader.fields import is_text_field
from jobs.loader.syntax import find_mistake
from jobs.loader.variables import OPENING, Variables

MAX_BYTES = 256 * 1024
"""Largest job file; a long job file has about 4 KiB."""
MAX_DEPTH = 20
"""Deepest nesting; a job file needs 6 levels."""
MAX_NODES = 10_000
"""Most keys and values of a file."""

FORBIDDEN = re.compile("[\x00\ud800-\udfff]")
"""Characters that YAML's escapes can write and no file, path or terminal accepts."""

Path = tuple[str | int, ...]
"""Path of a value: mapping keys and list indices."""


class Position(NamedTuple):
    """1-based position in a file; line 0 stands for the command line."""

    line: int
    column: int
    file: str
    variables: tuple[str, ...] = ()
    """Where the variables of the value are set, such as `LR from .env:2`."""


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a job file with the position of each."""

    file: str
    values: dict[str, Any]
    positions: dict[Path, Position] = field(default_factory=dict)
    """Position of each value."""
    keys: dict[Path, Position] = field(default_factory=dict)
    """Position of each mapping key."""
    problems: tuple[Problem, ...] = ()
    """Duplicate keys; the rest of the file is still checked."""
    unset: tuple[Problem, ...] = ()
    """Variables that have no value."""

    def locate(self, path: Path, *, key: bool = False) -> Position:
        """Returns the position of a value (or its key), else of the nearest parent in the file."""
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, Position(1, 1, self.file))

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        """Returns a problem with the value at `path`, with its position."""
        place = self.locate(path, key=key)
        if place.variables:
            message = f"{message} ({'; '.join(place.variables)})"
        return Problem(place.file, place.line, place.column, dotted(path), message)

    def origin(self, path: Path) -> str:
        """Returns where a value of the job is set: `job.yaml:3`, `--set` or `default`."""
        value: Any = self.values
        for depth, part in enumerate(path):
            if isinstance(value, dict) and part not in value:
                return "default"
            if not isinstance(value, dict | list):
                path = path[:depth]  # the job writes a short form, such as T4:2, in full
                break
            inner: Any = value  # the path leads through values of the file
            value = inner[part]
        place = self.locate(path)
        if not place.line:
            return place.file
        return ", ".join((f"{place.file}:{place.line}", *place.variables))


def dotted(path: Path) -> str:
    """Writes a path as users do: `resources.any_of[0].accelerators`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def parse(text: str | bytes, file: str, variables: Variables | None = None) -> Document:
    """Parses YAML into values with positions, with `variables` replaced in them.

    Raises:
        JobFileError: if it is not valid YAML, or uses a feature that job files may not use.
    """
    reader = _Reader(file, _decode(text, file), variables)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mistake = find_mistake(error, reader.text, reader.last)
        raise JobFileError([Problem(file, *mistake[:2], "", mistake.message)]) from None
    except yaml.reader.ReaderError as error:
        line = reader.text.count("\n", 0, error.position) + 1
        code = f"character U+{error.character:04X} is not allowed in YAML; remove it"
        raise JobFileError([Problem(file, line, 1, "", code)]) from None


def read_scalar(text: str) -> Any:
    """Returns the value of a plain scalar by the YAML 1.2 core schema."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]{1,400}", text):
        return int(text)
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}|0o[0-7]{1,16}", text):
        return int(text, 0)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return float(text)
    if re.fullmatch(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", text):
        return float(text.lower().replace(".", ""))
    return text


def _decode(text: str | bytes, file: str) -> str:
    if len(text) > MAX_BYTES:
        message = f"the file has {len(text):,} bytes; a job file has at most {MAX_BYTES:,}"
        raise JobFileError([Problem(file, 1, 1, "", message)])
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - (text.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"byte 0x{text[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise JobFileError([Problem(file, line, column, "", message)]) from None


class _Reader:
    """Builds values from parser events, and checks limits before it builds each value."""

    def __init__(self, file: str, text: str, variables: Variables | None) -> None:
        self.file = file
        self.text = text
        self.variables = variables
        self.events = self._events()
        self.positions: dict[Path, Position] = {}
        self.keys: dict[Path, Position] = {}
        self.problems: list[Problem] = []
        self.unset: list[Problem] = []
        self.nodes = 0
        self.last: Any = None
        """The event of the latest scalar."""

    def document(self) -> Document:
        """Reads the single document of the file, which must be a mapping."""
        next(self.events)  # the start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise JobFileError(
                [Problem(self.file, 1, 1, "", "the file is empty; try `winnow init`")]
            )
        start = next(self.events)
        value = self._value(start, (), 1)
        next(self.events)  # the end of the document
        more = next(self.events)
        if not isinstance(more, yaml.StreamEndEvent):
            raise self.refuse(
                "a job file holds one document; remove what follows `---`", more.start_mark
            )
        if not isinstance(value, dict):
            raise self.refuse("a job file is a mapping of keys such as `name:`", start.start_mark)
        return Document(
            self.file,
            value,
            self.positions,
            self.keys,
            tuple(self.problems),
            tuple(self.unset),
        )

    def refuse(self, message: str, mark: Any) -> JobFileError:
        """Returns an error with a position in the file."""
        place = self._position(mark) if mark else Position(1, 1, self.file)
        return JobFileError([Problem(self.file, place.line, place.column, "", message)])

    def _position(self, mark: Any) -> Position:
        return Position(mark.line + 1, mark.column + 1, self.file)

    def _events(self) -> Iterator[Any]:
        for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.ScalarEvent):
                self.last = event
            yield event

    def _value(self, event: Any, path: Path, depth: int) -> Any:
        self._check_limits(event, depth)
        self.positions[path] = self._position(event.start_mark)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path, depth)
        if self.variables is not None and OPENING in event.value:
            return self._expanded(event, path, self.variables)
        return read_scalar(event.value) if event.style is None else event.value

    def _expanded(self, event: Any, path: Path, variables: Variables) -> Any:
        """Returns a scalar with its variables replaced; its field says whether it is a text."""
        found = variables.expand(event.value)
        place = self.positions[path]
        self.positions[path] = place._replace(variables=found.origins)
        written = self.text[event.start_mark.index : event.end_mark.index]
        for mistake in found.mistakes:
            # escapes and line breaks move what follows them
            offset = mistake.offset + (event.style is not None)
            is_plain = written[offset:].startswith(event.value[mistake.offset :][:2])
            column = place.column + (offset if is_plain and "\n" not in written else 0)
            self.unset.append(Problem(self.file, place.line, column, dotted(path), mistake.message))
        if wrong := FORBIDDEN.search(found.text):
            code = f"character U+{ord(wrong[0]):04X} is not allowed; change the variable"
            raise self.refuse(code, event.start_mark)
        is_text = (event.style and not found.origins) or is_text_field(path)
        return found.text if is_text else read_scalar(found.text)

    def _check_limits(self, event: Any, depth: int) -> None:
        self.nodes += 1
        if isinstance(event, yaml.AliasEvent):
            raise self.refuse(
                "aliases (`*name`) are not allowed; write the value out", event.start_mark
            )
        if event.tag is not None:
            raise self.refuse(f"tag {event.tag!r} is not allowed; remove it", event.start_mark)
        if isinstance(event, yaml.ScalarEvent) and (found := FORBIDDEN.search(event.value)):
            code = f"character U+{ord(found[0]):04X} is not allowed; remove it"
            raise self.refuse(code, event.start_mark)
        if depth > MAX_DEPTH:
            raise self.refuse(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if self.nodes > MAX_NODES:
            raise self.refuse(f"more than {MAX_NODES:,} keys and values", event.start_mark)

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self._check_limits(event, depth)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.refuse("a key must be plain text", event.start_mark)
            here = (*path, event.value)
            position = self._position(event.start_mark)
            if event.value in values:
                first = self.keys[here].line
                message = f"duplicate key; first written in line {first}; keep one of them"
                self.problems.append(
                    Problem(self.file, position.line, position.column, dotted(here), message)
                )
            else:
                self.keys[here] = position
            values[event.value] = self._value(next(self.events), here, depth + 1)
        return values
