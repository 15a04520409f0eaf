"""Reads a job file and the files that it extends as one document that knows where values stand."""

import os
from pathlib import Path
from typing import Any

from jobs.errors import JobFileError, Problem, shown
from jobs.loader import source
from jobs.loader.source import Document
from jobs.loader.variables import Variables
from jobs.storage import files

EXTENDS = "extends"
"""Key with the path of the file whose values a job file takes over."""
WHERE = (EXTENDS,)


def read(path: Path) -> Document:
    """Returns the values of a job file, over those of the files that it extends.

    Raises:
        JobFileError: if a file cannot be read, is no YAML, extends itself, or names a variable that
            is not set.
    """
    return read_text(_bytes(path), str(path), path.parent)


def read_text(text: str | bytes, file: str, folder: Path) -> Document:
    """As `read`, for the text of a file in a folder."""
    variables = Variables(folder)
    document = source.parse(text, file, variables)
    seen = [folder / Path(file).name]
    unset = list(document.unset)
    while EXTENDS in document.values and EXTENDS not in [problem.path for problem in unset]:
        place = _extended(document, seen)
        seen.append(place)
        base = source.parse(_bytes(place), str(place), variables)
        unset += base.unset
        document = _merged(base, _without_extends(document))
    if unset:
        raise JobFileError(unset)
    return document


def _extended(document: Document, seen: list[Path]) -> Path:
    """Returns the file that a document extends.

    Raises:
        JobFileError: if there is none, or it is among those that were read.
    """
    named = document.values[EXTENDS]
    folder = Path(document.locate(WHERE).file).parent
    if len(seen) == 1:
        folder = seen[0].parent

    def refuse(message: str) -> JobFileError:
        return JobFileError([document.problem(WHERE, message)])

    if not isinstance(named, str) or not named:
        raise refuse(f"{shown(named)} is not the path of a job file, such as base.yaml")
    place = Path(os.path.normpath(folder / files.expanded(named)))
    chain = [*seen, place]
    if place.resolve() in [path.resolve() for path in seen]:
        raise refuse(f"files extend each other: {' -> '.join(path.name for path in chain)}")
    if not place.is_file():
        raise refuse(f"{named} does not exist; the path is relative to {folder.resolve()}")
    return place


def _without_extends(document: Document) -> Document:
    values = {name: value for name, value in document.values.items() if name != EXTENDS}
    return Document(
        document.file,
        values,
        {path: place for path, place in document.positions.items() if path != WHERE},
        {path: place for path, place in document.keys.items() if path != WHERE},
        document.problems,
    )


def _merged(base: Document, over: Document) -> Document:
    """Returns the values of both: mappings are merged, and any other value of `over` replaces."""
    replaced: list[source.Path] = []
    values = _merge(base.values, over.values, (), replaced)

    def kept(path: source.Path) -> bool:
        return not any(path[: len(each)] == each for each in replaced)

    positions = {path: place for path, place in base.positions.items() if kept(path)}
    keys = {path: place for path, place in base.keys.items() if kept(path)}
    problems = (*over.problems, *base.problems)
    return Document(over.file, values, positions | over.positions, keys | over.keys, problems)


def _merge(base: Any, over: Any, path: source.Path, replaced: list[source.Path]) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        replaced.append(path)
        return over
    both = {
        name: _merge(base[name], value, (*path, name), replaced) if name in base else value
        for name, value in over.items()
    }
    return base | both


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise JobFileError([Problem(str(path), 0, 0, "", _why_unreadable(error))]) from None


def _why_unreadable(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file; `winnow init` writes a first job"
    if isinstance(error, IsADirectoryError):
        return "is a folder; name the job file in it"
    return f"cannot be read: {error.strerror}"
