"""The names of a job's fields, read from `JobSpec`."""

import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from jobs.spec import task_registry
from jobs.spec.data import DataSpec
from jobs.spec.job import JobSpec
from jobs.spec.task import Task


def field_names(path: Sequence[str | int], task: Task | None = None) -> list[str]:
    """Returns the sorted names of the fields below `path`; empty if keys are free or unknown.

    The data section has the fields of `task`, or of all tasks without one.
    """
    kinds = [task.data] if task and tuple(path) == ("data",) else _kinds_at(path)
    models = (kind for kind in kinds if isinstance(kind, type))
    return sorted(
        {name for kind in models if issubclass(kind, BaseModel) for name in kind.model_fields}
    )


def is_field(path: str) -> bool:
    """Returns whether a dotted path names a field, or an entry of a mapping with free keys."""
    return bool(_kinds_at(path.split(".")))


def is_text_field(path: Sequence[str | int]) -> bool:
    """Returns whether a field takes texts, and neither numbers nor true and false."""
    kinds = _kinds_at(path)
    return str in kinds and not any(kind in (int, float, bool) for kind in kinds)


def values_of(path: str) -> list[object]:
    """Returns the values of a field, given by its dotted path, that takes only some; else none."""
    kinds = _kinds_at(path.split("."))
    return [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]


@cache
def all_field_paths() -> tuple[str, ...]:
    """Returns the dotted path of every field, without list indices and the keys of mappings."""
    paths: list[str] = []

    def walk(annotation: Any, prefix: str) -> None:
        for kind in _kinds(annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                for name, info in kind.model_fields.items():
                    paths.append(f"{prefix}{name}")
                    walk(info.annotation, f"{prefix}{name}.")
            elif get_origin(kind) in (tuple, dict):
                walk(get_args(kind)[-1 if get_origin(kind) is dict else 0], prefix)

    walk(JobSpec, "")
    return tuple(dict.fromkeys(paths))


def _kinds_at(path: Sequence[str | int]) -> list[Any]:
    """Returns the types that a value at `path` may have."""
    kinds: list[Any] = [JobSpec]
    for part in path:
        kinds = [inner for kind in kinds for inner in _inside(kind, part)]
    return kinds


def _inside(kind: Any, part: str | int) -> Iterator[Any]:
    """Yields the types of a part of a value: a model's field, a list's item, a mapping's value."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if part in kind.model_fields:
            yield from _kinds(kind.model_fields[str(part)].annotation)
    elif get_origin(kind) is tuple and isinstance(part, int):
        yield from _kinds(get_args(kind)[0])
    elif get_origin(kind) is dict and isinstance(part, str):
        yield from _kinds(get_args(kind)[1])


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yields the members of a union without annotations; for DataSpec, the data of each task."""
    if get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _kinds(member)
    elif annotation is DataSpec:
        yield from (task.data for task in task_registry.every())
    else:
        yield annotation
