"""Finds tasks by name: ours, and those of installed packages (entry points of `winnow.tasks`)."""

import difflib
import functools
import importlib
from importlib import metadata
from typing import Any

from jobs.errors import TaskError, first_line, listed, shown
from jobs.spec.task import VARIANT_MARK, Task

GROUP = "winnow.tasks"
"""Group of entry points; each names a task and its value, `package.task:TASK`."""
OURS = {
    "text-classification": "jobs.tasks.text_classification.task:TASK",
    "token-classification": "jobs.tasks.token_classification.task:TASK",
    "causal-lm": "jobs.tasks.causal_lm.task:TASK",
    "preference": "jobs.tasks.preference.task:TASK",
    "sentence-embedding": "jobs.tasks.sentence_embedding.task:TASK",
    "seq2seq": "jobs.tasks.seq2seq.task:TASK",
    "masked-lm": "jobs.tasks.masked_lm.task:TASK",
}
DEFAULT_TASK = next(iter(OURS))
"""The task of a job that names none."""


@functools.cache
def find(name: str) -> Task:
    """The task of a name, which may end with that of a variant: `task/variant`.

    Raises:
        TaskError: if no installed package has it, or its package cannot be imported.
    """
    place = OURS.get(name) or _theirs().get(name)
    if place is None and (variant := _variant(name)):
        return variant
    if place is None:
        known = names()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TaskError(f"{shown(name)} is no task; known are {listed(known)}{hint}")
    task = resolve(place)
    if not isinstance(task, Task):
        raise TaskError(f"{place}, the entry point of {shown(name)}, is not a jobs.spec.task.Task")
    return task


def chosen(name: str, variant: str) -> Task:
    """The task of a name in a variant, which a data section chooses; empty for the task itself.

    Raises:
        TaskError: as `find`, and if the task has no such variant.
    """
    task = find(_without_variant(name))
    found = task.variant(variant)
    if found is None:
        known = listed([kind.name for kind in task.kinds])
        raise TaskError(f"{task.name} has no variant {shown(variant)}; known are {known}")
    return found


def names() -> list[str]:
    """Names of all tasks, ours first."""
    return [*OURS, *sorted(_theirs().keys() - OURS.keys())]


def ours() -> list[Task]:
    """The tasks of this project."""
    return [find(name) for name in OURS]


def every() -> list[Task]:
    """All tasks whose packages can be imported."""
    found = []
    for name in names():
        try:
            found.append(find(name))
        except TaskError:
            continue  # said when a job names it
    return found


def kinds() -> list[Task]:
    """All tasks whose packages can be imported, with their variants."""
    return [kind for task in every() for kind in task.kinds]


@functools.cache
def resolve(place: str) -> Any:
    """The value at `module:name`, imported when it is first needed.

    Raises:
        TaskError: if it cannot be imported or is not there.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise TaskError(
            f"{place}, a part of a task, cannot be loaded: {first_line(error)}"
        ) from error


def _without_variant(name: str) -> str:
    base, mark, _ = name.rpartition(VARIANT_MARK)
    return base if mark and name not in names() else name


def _variant(name: str) -> Task | None:
    base, mark, variant = name.rpartition(VARIANT_MARK)
    return find(base).variant(variant) if mark and base in names() and variant else None


@functools.cache
def _theirs() -> dict[str, str]:
    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}
