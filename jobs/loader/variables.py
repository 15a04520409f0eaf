"""Replaces `${NAME}` in the values of a job file by variables of the environment or of `.env`."""

import functools
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dotenv.parser import parse_stream

from jobs.errors import SECRET_NAME, JobFileError, Problem

DOTENV = ".env"
"""File beside a job file with variables that the environment does not set."""
ESCAPED, OPENING = "$${", "${"
"""How a job file writes a plain `${`, and what it stands for."""
REFERENCE = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)(?P<end>\}?)")
INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)


class Mistake(NamedTuple):
    """An error in a text: the offset of the reference, and what is wrong with it."""

    offset: int
    message: str


class Variable(NamedTuple):
    """The value of a variable and where it is set."""

    text: str
    origin: str
    """Such as `LR from .env:2`."""


@dataclass(slots=True)
class Expansion:
    """A text with its variables replaced."""

    text: str
    origins: tuple[str, ...] = ()
    """Where the variables are set; empty if there are none."""
    mistakes: list[Mistake] = field(default_factory=list)


class Variables:
    """The environment of this process, then the file `.env` of a folder, read when it is needed."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._path = folder / DOTENV
        self._environment = environment

    def expand(self, text: str) -> Expansion:
        """Returns a text with each `${NAME}` and `${NAME:-default}` replaced, and `$${` by `${`.

        Raises:
            JobFileError: if `.env` is needed and cannot be read.
        """
        found = Expansion("")
        origins: list[str] = []
        place = 0
        for match in REFERENCE.finditer(text):
            found.text += text[place : match.start()]
            place = match.end()
            if match[0] == ESCAPED:
                found.text += OPENING
                continue
            variable = self._value(match)
            if isinstance(variable, str):
                found.mistakes.append(Mistake(match.start(), variable))
            else:
                found.text += variable.text
                origins.append(variable.origin)
        found.text += text[place:]
        found.origins = tuple(dict.fromkeys(origins))
        return found

    def get(self, name: str) -> Variable | None:
        """Returns a variable of the environment, else of `.env`, else None.

        Raises:
            JobFileError: if `.env` is needed and cannot be read.
        """
        if name in self._environment:
            return Variable(self._environment[name], f"{name} from the environment")
        return self._file.get(name)

    def _value(self, match: re.Match[str]) -> Variable | str:
        """Returns the value that a reference stands for, or what is wrong with it."""
        inside = INSIDE.fullmatch(match["inside"])
        if inside is None or not match["end"]:
            return (
                f"{match[0]} is no variable; write ${{NAME}}, ${{NAME:-default}}, or $${{ for ${{"
            )
        name, default = inside["name"], inside["default"]
        if SECRET_NAME.search(name):
            return (
                f"{match[0]} is a secret by its name, and every record of a run would show its"
                " value; list the name under secrets, or use a field that takes a variable's name"
            )
        variable = self.get(name)
        if default is not None and not (variable and variable.text):
            return Variable(default.removeprefix(":-"), f"{name} by its default")
        if variable is None:
            return (
                f"the variable {name} is not set; set it in the environment or in {self._path}, or"
                f" write ${{{name}:-default}}"
            )
        return variable

    @functools.cached_property
    def _file(self) -> dict[str, Variable]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(1, f"cannot be read: {error}") from None
        found: dict[str, Variable] = {}
        for line in parse_stream(io.StringIO(text)):
            written = line.original.string
            blank = len(written) - len(written.lstrip())  # lines above belong to it
            number = line.original.line + written.count("\n", 0, blank)
            if line.error:
                raise self._unreadable(number, "is not NAME=value")
            if line.key is not None:
                origin = f"{line.key} from {self._path}:{number}"
                found[line.key] = Variable(line.value or "", origin)
        return found

    def _unreadable(self, line: int, message: str) -> JobFileError:
        return JobFileError([Problem(str(self._path), line, 1, "", message)])


def escaped(text: str) -> str:
    """Returns a text as a job file has to write it so that nothing in it is a variable."""
    return text.replace(OPENING, ESCAPED)
