"""Every error a user can meet, under one root; the command line prints them without a traceback."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

PASSWORD = re.compile(r"(?<=://)[^/\s@]+(?=@)")
"""User and password of a URL."""
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)S?$", re.IGNORECASE)
"""Environment variables whose values nobody may read."""
SHORTEST_SECRET = 8
"""Characters; less is as likely a word of the sentence."""
MASK = "***"
SHOWN = 60
"""Characters of a value that an error shows."""
LISTED = 10
"""Names that an error lists."""
LONGEST_CLAUSE = 300
"""Characters of a library's words that an error repeats."""
NEXT_SENTENCE = re.compile(r"(?<=[^.])\.\s+(?=[A-Z])")
"""Between two sentences."""
_named: set[str] = set()
"""Further variables whose values nobody may read."""


def hide(names: Iterable[str]) -> None:
    """Treat environment variables as secret from now on, whatever their names."""
    _named.update(names)


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """A text without the passwords of its URLs and the values of secret environment variables."""
    hidden = PASSWORD.sub(MASK, text)
    for name, values in environment.items():
        if name in _named or SECRET_NAME.search(name):
            for value in (values, *re.split(r"[,\s]+", values)):
                if len(value) >= SHORTEST_SECRET:
                    hidden = hidden.replace(value, MASK)
    return hidden


class WinnowError(Exception):
    """Root of all errors that are the user's or the cluster's to mend, not bugs.

    What it says goes to terminals, journals and reports, so secrets are taken out of it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a job file: where, what, which rule, and what to do about it."""

    file: str
    line: int
    """1-based; 0 when the value came from the command line."""
    column: int
    """1-based; 0 when the value came from the command line."""
    path: str
    """Dotted path of the field, empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class JobFileError(WinnowError):
    """A job file that cannot be used, with every problem found in it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(replace(p, message=redacted(p.message)) for p in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InfeasibleError(WinnowError):
    """No placement on this cluster can run the job."""


class TaskError(WinnowError):
    """A task that no installed package has, or whose package cannot be imported."""


class DataError(WinnowError):
    """Data that cannot be read or do not fit the job."""


class ModelError(WinnowError):
    """A base model that cannot be found or does not fit the job."""


class TrainingError(WinnowError):
    """Training that cannot go on, such as a loss that is not finite."""


class CheckpointError(WinnowError):
    """A checkpoint or published version that is missing, torn or altered."""


class PublishError(WinnowError):
    """A trained model whose saved files do not score as it did in training."""


class StorageError(WinnowError):
    """Storage that cannot be read or written."""

    def __init__(self, message: str, *, is_full: bool = False, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full
        """Whether there is no room left."""
        self.is_passing = is_passing
        """Whether it may work again by itself, as a server that is down."""


class ClusterError(WinnowError):
    """A Ray cluster that cannot be reached, started or used."""


class RunError(WinnowError):
    """A run directory that cannot be found, read or resumed."""


class DeployError(WinnowError):
    """An endpoint that did not become healthy or does not answer."""


class RequestError(WinnowError):
    """A request that an endpoint refuses, or that cannot be sent to one."""


def shown(value: object) -> str:
    """A value as errors show it: in one line, and cut where it is long."""
    return _cut(repr(value))


def listed(names: Iterable[str]) -> str:
    """Names with commas between them, each in one line; `…` stands for what is left out."""
    found = list(itertools.islice(names, LISTED + 1))
    words = [_cut(repr(name)[1:-1]) for name in found[:LISTED]]
    return ", ".join([*words, "…"] if len(found) > LISTED else words)


def first_line(error: object) -> str:
    """The first sentence of a library's error, without secrets; with its kind if that is a word."""
    lines = [line.strip() for line in redacted(str(error)).splitlines() if line.strip()]
    line = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    clause = NEXT_SENTENCE.split(line, maxsplit=1)[0].rstrip(".:(")[:LONGEST_CLAUSE]
    is_word = isinstance(error, BaseException) and " " not in clause
    return f"{type(error).__name__}: {clause}".rstrip(": ") if is_word else clause


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
