"""Finds tasks by name: ours, and those of installed packages (entry points of `winnow.tasks`)."""

import difflib
import functools
import importlib
from importlib import metadata
from typing import Any

from jobs.errors import TaskError, first_line, listed, shown
from jobs.spec.task import Task

GROUP = "winnow.tasks"
"""Group of entry points; each names a task and its value, `package.task:TASK`."""
OURS = {
    "text-classification": "jobs.tasks.text_classification.task:TASK",
    "causal-lm": "jobs.tasks.causal_lm.task:TASK",
    "masked-lm": "jobs.tasks.masked_lm.task:TASK",
}
DEFAULT_TASK = next(iter(OURS))
"""The task of a job that names none."""


@functools.cache
def find(name: str) -> Task:
    """The task of a name.

    Raises:
        TaskError: if no installed package has it, or its package cannot be imported.
    """
    place = OURS.get(name) or _theirs().get(name)
    if place is None:
        known = names()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TaskError(f"{shown(name)} is no task; known are {listed(known)}{hint}")
    task = resolve(place)
    if not isinstance(task, Task):
        raise TaskError(f"{place}, the entry point of {shown(name)}, is not a jobs.spec.task.Task")
    return task


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


@functools.cache
def _theirs() -> dict[str, str]:
    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}
