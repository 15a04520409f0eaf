"""All errors for users, under one root; the command line prints them without a traceback."""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from raywinnow.paths import Shadow

PASSWORD = re.compile(r"(?<=://)(?<!registry://)[^/\s@]+(?=@)")
"""Matches user and password of a URL; `registry://name@alias` holds neither."""
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)S?$", re.IGNORECASE)
"""Matches names of environment variables whose values are secret."""
SHORTEST_SECRET = 8
"""Characters; shorter values are not masked, because they may be ordinary words."""
MASK = "***"
SHOWN = 60
"""Most characters of a value or line that an error shows."""
LISTED = 10
"""Most names that an error lists."""
LONGEST_CLAUSE = 300
"""Most characters that an error quotes from a library's message."""
NEXT_SENTENCE = re.compile(r"(?<=[^.])\.\s+(?=[A-Z])")
"""Matches the end of a sentence that another sentence follows."""
_named: set[str] = set()
"""Further environment variables whose values are secret."""
_texts: set[str] = set()
"""Secret texts that no environment variable holds."""


def hide(names: Iterable[str]) -> None:
    """Treats the values of these environment variables as secret from now on."""
    _named.update(names)


def hide_text(text: str) -> None:
    """Treats a text, such as a URL of a job file, as secret from now on."""
    _texts.add(text)


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Masks passwords in URLs and the values of secret environment variables in a text."""
    hidden = text
    for secret in _texts:
        hidden = hidden.replace(secret, MASK)
    hidden = PASSWORD.sub(MASK, hidden)
    for name, values in environment.items():
        if name in _named or SECRET_NAME.search(name):
            for value in (values, *re.split(r"[,\s]+", values)):
                if len(value) >= SHORTEST_SECRET:
                    hidden = hidden.replace(value, MASK)
    return hidden


class WinnowError(Exception):
    """Root of all errors that a user or an administrator can fix; anything else is a bug.

    Secrets are masked in the message, because it is written to terminals, journals and reports.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a job file: its position, the value, the violated rule and the remedy."""

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
    """A job file is invalid; lists every problem in it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(replace(p, message=redacted(p.message)) for p in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InfeasibleError(WinnowError):
    """No placement on this cluster can run the job."""


class TaskError(WinnowError):
    """No installed package provides the task, or its package cannot be imported."""


class DataError(WinnowError):
    """The data cannot be read or do not fit the job."""


class ModelError(WinnowError):
    """The base model does not exist, cannot be loaded or does not fit the job."""


class TrainingError(WinnowError):
    """Training cannot continue, for example because the loss is not finite."""


class CheckpointError(WinnowError):
    """A checkpoint or published version is missing, incomplete or altered."""


class PublishError(WinnowError):
    """The saved files of a trained model give other scores than the model did in training."""


class HubError(WinnowError):
    """The Hugging Face Hub does not take a model."""


class StorageError(WinnowError):
    """The storage cannot be read or written."""

    def __init__(self, message: str, *, is_full: bool = False, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full
        """Whether the disk is full."""
        self.is_passing = is_passing
        """Whether a later attempt may succeed, for example because a server is down."""


class ClusterError(WinnowError):
    """The Ray cluster cannot be reached, started or used."""


class RunError(WinnowError):
    """The run directory does not exist or cannot be read or resumed."""


class ImportPathError(WinnowError):
    """Files that Python would import instead of Winnow's packages."""

    def __init__(self, shadows: Iterable[Shadow]) -> None:
        super().__init__("\n".join(_of_shadow(shadow) for shadow in shadows))


def _of_shadow(shadow: Shadow) -> str:
    taken = f"{shadow.path} has the name of Winnow's package {shadow.package}"
    if shadow.is_sent:
        return (
            f"{taken} and was sent with the job, so Ray's workers would import it instead; rename"
            " it, or send the job with `winnow submit`, which leaves Python files out"
        )
    return (
        f"{taken} and comes before it on the import path; rename it, or take its folder out of"
        " PYTHONPATH"
    )


class DeployError(WinnowError):
    """The endpoint does not become healthy or does not answer."""


class RolloutStoppedError(DeployError):
    """The gate of a rollout stopped a new version; the old one answers all requests."""


class RequestError(WinnowError):
    """A request that an endpoint refuses, or that cannot be sent to one."""


def shown(value: object) -> str:
    """Returns a value for an error message: on one line, cut to SHOWN characters."""
    return cut(repr(value))


def listed(names: Iterable[str]) -> str:
    """Joins names with commas, each on one line; `…` stands for names beyond the first LISTED."""
    found = list(itertools.islice(names, LISTED + 1))
    words = [cut(repr(name)[1:-1]) for name in found[:LISTED]]
    return ", ".join([*words, "…"] if len(found) > LISTED else words)


def first_line(error: object) -> str:
    """Returns the first sentence of a library's error, with secrets masked.

    The type of the error stands before a message of a single word.
    """
    lines = [line.strip() for line in redacted(str(error)).splitlines() if line.strip()]
    line = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    clause = NEXT_SENTENCE.split(line, maxsplit=1)[0].rstrip(".:(")[:LONGEST_CLAUSE]
    is_word = isinstance(error, BaseException) and " " not in clause
    return f"{type(error).__name__}: {clause}".rstrip(": ") if is_word else clause


def cut(text: str) -> str:
    """Returns a text cut to SHOWN characters."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
