"""Locates a mistake in YAML and says how to fix it; a parser stops later than the mistake."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from jobs.errors import cut
from jobs.loader.fields import all_field_paths
from jobs.loader.words import most_similar

_KEY = re.compile(r"(?P<key>[\w.-]+)(?P<mark>\s*[:=]?\s*)(?P<value>.*)")
_COMMENT = re.compile(r"(^|\s)#.*")


class Mistake(NamedTuple):
    """A 1-based position in the file, and a message about it."""

    line: int
    column: int
    message: str


@dataclass(frozen=True, slots=True)
class _Stop:
    """The parser's state when it stopped; lines and columns are 0-based, as the parser's are."""

    lines: list[str]
    problem: str
    at: Any
    context: str
    begin: Any
    """Mark of the construct that the parser was reading; None if the parser does not name it."""
    last: Any
    """The event of the last scalar before; None if there is none."""

    def text(self, line: int) -> str:
        """Returns a line without its comment; empty after the end of the file."""
        return _COMMENT.sub("", self.lines[line]).rstrip() if line < len(self.lines) else ""

    def indent(self, line: int) -> int:
        """Returns the number of spaces before the text of a line."""
        text = self.text(line)
        return len(text) - len(text.lstrip())

    def depth(self, line: int) -> int:
        """Returns the column of a line's first key, after the dash of a list item."""
        text = self.text(line)
        return len(text) - len(text.lstrip(" -"))

    def is_alone(self, line: int) -> bool:
        """Returns whether no other line has the same indentation."""
        others = (index for index in range(len(self.lines)) if index != line and self.text(index))
        return all(self.depth(index) != self.depth(line) for index in others)

    def above(self, line: int) -> int:
        """Returns the nearest line above that is not empty; -1 if there is none."""
        return next((index for index in range(line - 1, -1, -1) if self.text(index)), -1)

    def begins_line(self, mark: Any) -> bool:
        """Returns whether only indentation and dashes stand before a mark in its line."""
        return not self.text(mark.line)[: mark.column].strip(" -")

    def spans_lines(self, style: str) -> bool:
        """Returns whether the last scalar has the style (`quoted` or `plain`) and spans lines."""
        is_quoted = self.last is not None and self.last.style in ("'", '"')
        if self.last is None or is_quoted != (style == "quoted"):
            return False
        return bool(self.last.start_mark.line < self.last.end_mark.line)


def find_mistake(error: yaml.MarkedYAMLError, text: str, last: Any) -> Mistake:
    """Returns the mistake that stopped the parser.

    Without a known mistake, it is the parser's own message at the parser's position. `last` is the
    event of the last scalar before, or None.
    """
    at = error.problem_mark or error.context_mark
    problem, context = error.problem or "cannot be read", error.context or ""
    stop = _Stop(text.splitlines(), problem, at, context, error.context_mark, last)
    found = (rule(stop) for rule in RULES) if at else ()
    mistake = next((mistake for mistake in found if mistake), None)
    beside = f" ({context})" if context else ""
    return mistake or _at(at, f"not valid YAML: {problem}{beside}")


def key_meant(text: str) -> str:
    """Returns `key: value` for text that lacks the colon or the space after it; else empty."""
    match = _KEY.fullmatch(text)
    if match is None:
        return ""
    names = {path.rpartition(".")[2] for path in all_field_paths()}
    key = most_similar(match["key"].lower(), sorted(names)) or match["key"]
    return cut(f"{key}: {match['value']}".rstrip())


def _tab(stop: _Stop) -> Mistake | None:
    if "'\\t'" in stop.problem:
        return _at(stop.at, "a tab cannot indent YAML; use spaces")
    return None


def _open_quote(stop: _Stop) -> Mistake | None:
    if "quoted scalar" in stop.context and stop.problem.startswith("found unexpected"):
        return _at(stop.begin, "the quote is never closed; write it again where the text ends")
    if stop.spans_lines("quoted") and stop.at.line == stop.last.end_mark.line:
        line = stop.last.end_mark.line + 1
        message = f"the quote is not closed in its line but only in line {line}; close it here"
        return _at(stop.last.start_mark, message)
    return None


def _text_after_quote(stop: _Stop) -> Mistake | None:
    last = stop.last
    is_after = last is not None and last.style in ("'", '"') and last.end_mark.line == stop.at.line
    if is_after and "found '<scalar>'" in stop.problem:
        message = "text follows the closing quote; put all of it in quotes of the other kind"
        return _at(stop.at, message)
    return None


def _no_colon(stop: _Stop) -> Mistake | None:
    if "could not find expected ':'" in stop.problem:
        return _no_dash(stop, stop.begin) or _colon_at(stop, stop.begin)
    is_folded = "mapping values" in stop.problem and stop.spans_lines("plain")
    if is_folded and stop.begins_line(stop.last.start_mark):
        return _colon_at(stop, stop.last.start_mark)
    return None


def _colon_at(stop: _Stop, mark: Any) -> Mistake:
    text = stop.text(mark.line)[mark.column :]
    meant = key_meant(text)
    what = "a space is missing after the colon" if ":" in text else "the colon is missing"
    return _at(mark, f"{what}; write `{meant}`" if meant else f"{what} after the key")


def _too_deep(stop: _Stop) -> Mistake | None:
    is_folded = "mapping values" in stop.problem and stop.spans_lines("plain")
    return _unaligned(stop, stop.at.line, stop.last.start_mark.line) if is_folded else None


def _two_in_a_line(stop: _Stop) -> Mistake | None:
    if "mapping values" in stop.problem:
        return _at(stop.at, "a second key or colon in one line; put the value in quotes")
    if "sequence entries" in stop.problem:
        return _at(stop.at, "a list's item cannot follow a key in its line; begin a line with it")
    return None


def _missing_dash(stop: _Stop) -> Mistake | None:
    is_in_list = "block collection" in stop.context and "found '-'" not in stop.problem
    return _no_dash(stop, stop.at) if is_in_list else None


def _no_dash(stop: _Stop, mark: Any) -> Mistake | None:
    """Returns the mistake of a line that stands where the dashes of the list above it stand."""
    line, text = mark.line, stop.text(mark.line)[mark.column :]
    above = stop.above(line)
    while above >= 0 and stop.indent(above) > mark.column:
        above = stop.above(above)
    if above < 0 or stop.indent(above) != mark.column or stop.text(above).strip()[:1] != "-":
        return None
    return _dash_at(line, mark.column, text)


def _dash_at(line: int, column: int, text: str) -> Mistake:
    what = "a space is missing after the dash" if text[:1] == "-" else "the dash is missing"
    return Mistake(line + 1, column + 1, f"{what}; write `- {cut(text.removeprefix('-'))}`")


def _stray_dash(stop: _Stop) -> Mistake | None:
    line, above = stop.at.line, stop.above(stop.at.line)
    if not stop.text(line).lstrip().startswith("- ") or "expected <block end>" not in stop.problem:
        return None
    is_beside = stop.indent(line) == stop.indent(above) or stop.depth(line) == stop.depth(above)
    text = stop.text(above).lstrip()
    if text.startswith("- "):
        return _unaligned(stop, line, above)
    if is_beside and not text.endswith(":"):
        return _dash_at(above, stop.indent(above), text)
    return _at(stop.at, "a list's item cannot stand here; begin the list after a key and its colon")


def _odd_indent(stop: _Stop) -> Mistake | None:
    if "<document start>" in stop.problem:
        first = next(line for line in range(len(stop.lines)) if stop.text(line))
        spaces = stop.indent(first)
        return Mistake(first + 1, spaces + 1, f"indented by {spaces}; begin at the left edge")
    if "<block end>" not in stop.problem or not stop.begins_line(stop.at):
        return None
    line, enclosing = stop.at.line, stop.above(stop.at.line)
    beside = enclosing
    while enclosing >= 0 and stop.indent(enclosing) > stop.indent(line):
        if stop.indent(enclosing) < stop.indent(beside):
            beside = enclosing
        enclosing = stop.above(enclosing)
    is_odd = stop.indent(enclosing) > 0 and stop.is_alone(enclosing)
    return _unaligned(stop, line, enclosing if is_odd else beside)


def _unaligned(stop: _Stop, line: int, above: int) -> Mistake:
    """Returns the mistake of two lines that should align, at the one with unique indentation."""
    if stop.is_alone(above) and not stop.is_alone(line):
        line, above = above, line
    message = (
        f"indented by {stop.depth(line)}, but line {above + 1} by {stop.depth(above)}; the lines of"
        " a section or a list line up, and what is in one of them stands deeper"
    )
    return Mistake(line + 1, stop.depth(line) + 1, message)


def _variable(stop: _Stop) -> Mistake | None:
    if "got '{'" in stop.problem and stop.text(stop.at.line)[: stop.at.column].endswith("$"):
        message = 'a variable inside of braces needs quotes; write "${NAME}"'
        return Mistake(stop.at.line + 1, stop.at.column, message)
    return None


def _open_bracket(stop: _Stop) -> Mistake | None:
    match = re.match(r"expected ',' or '(.)'", stop.problem)
    if match is None:
        return None
    opened = stop.lines[stop.begin.line][stop.begin.column]
    is_outside = stop.indent(stop.at.line) <= stop.indent(stop.begin.line)
    if "<stream end>" in stop.problem or (is_outside and stop.at.line > stop.begin.line):
        message = f"the {opened} is never closed; write {match[1]} where it ends"
        return _at(stop.begin, message)
    mark = stop.last.end_mark if stop.last and not stop.spans_lines("plain") else stop.at
    if stop.spans_lines("plain"):
        line = stop.last.start_mark.line
        return Mistake(line + 1, len(stop.text(line)) + 1, "a comma is missing at the line's end")
    return _at(mark, f"a comma or {match[1]} is missing here")


def _closed_twice(stop: _Stop) -> Mistake | None:
    match = re.search(r"found '([\]}])'", stop.problem)
    return _at(stop.at, f"nothing is open that {match[1]} closes; remove it") if match else None


def _odd_escape(stop: _Stop) -> Mistake | None:
    if "unknown escape character" in stop.problem:
        return _at(stop.at, "a backslash means nothing before this letter; use single quotes")
    return None


def _odd_start(stop: _Stop) -> Mistake | None:
    match = re.match(r"found character '(.)' that cannot start", stop.problem)
    if match or "scanning an alias" in stop.context:
        mark = stop.at if match else stop.begin
        character = match[1] if match else "*"
        return _at(mark, f"a value cannot begin with {character}; put it in quotes")
    return None


RULES: tuple[Callable[[_Stop], Mistake | None], ...] = (
    _tab,
    _open_quote,
    _text_after_quote,
    _no_colon,
    _too_deep,
    _two_in_a_line,
    _missing_dash,
    _stray_dash,
    _closed_twice,
    _odd_indent,
    _variable,
    _open_bracket,
    _odd_start,
    _odd_escape,
)
"""Detectors of known mistakes, the most certain first."""


def _at(mark: Any, message: str) -> Mistake:
    return Mistake(mark.line + 1, mark.column + 1, message) if mark else Mistake(1, 1, message)
