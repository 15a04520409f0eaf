"""A job file to a JobSpec, or every problem in it at once."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jobs.errors import JobFileError, Problem
from jobs.loader import explain, overrides, source
from jobs.spec import rules, support
from jobs.spec.job import JobSpec


def load(
    path: Path, *, settings: Sequence[str] = (), extra_rules: Sequence[rules.Rule] = ()
) -> JobSpec:
    """Read and check a job file.

    `settings` are `field.path=value` overrides. `extra_rules` are checks that need knowledge this
    package lacks, such as what each accelerator can do. Raises JobFileError with all problems.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise JobFileError([Problem(str(path), 0, 0, "", _why_unreadable(error))]) from None
    return loads(text, str(path), settings=settings, extra_rules=extra_rules)


def loads(
    text: str | bytes,
    file: str = "job.yaml",
    *,
    settings: Sequence[str] = (),
    extra_rules: Sequence[rules.Rule] = (),
) -> JobSpec:
    """Check the text of a job file; see `load`."""
    document = overrides.apply(source.parse(text, file), settings)
    checks = (rules.violations, support.unsupported, check_search_space, *extra_rules)
    spec, problems = _validate(document)
    problems.extend(document.problems)
    tolerant = spec or _without_errors(document)
    if tolerant is not None:
        found = [violation for check in checks for violation in check(tolerant)]
        broken = {problem.path for problem in problems}
        for violation in found:
            problem = document.problem(violation.path, violation.message)
            if problem.path not in broken:
                problems.append(problem)
    if problems or spec is None:
        raise JobFileError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return spec


def check_search_space(spec: JobSpec) -> Iterator[rules.Violation]:
    """Each searched field exists, may be searched, and takes each of its values."""
    for name, space in (spec.sweep.search_space if spec.sweep else {}).items():
        path: rules.Path = ("sweep", "search_space", name)
        if name not in overrides.SEARCHABLE:
            known = explain.nearest(name, overrides.SEARCHABLE)
            exists = name in explain.all_field_paths()
            what = "cannot be searched" if exists else "is not a field of a job"
            yield rules.Violation(path, f"{what}{known or _listed(overrides.SEARCHABLE)}")
            continue
        for index, value in enumerate(overrides.values_to_check(space)):
            for message in _value_errors(spec, name, value):
                where = (*path, index) if isinstance(space, tuple) else path
                yield rules.Violation(where, message)


def _value_errors(spec: JobSpec, name: str, value: object) -> list[str]:
    values = spec.model_dump(mode="json")
    overrides.put(values, name, value)
    try:
        JobSpec.model_validate(values)
    except ValidationError as error:
        document = source.Document("", values)
        return [problem.message for problem in explain.explain(error.errors(), document)]
    return []


def _listed(names: Sequence[str]) -> str:
    return f"; these can: {', '.join(names)}"


def _validate(document: source.Document) -> tuple[JobSpec | None, list[Problem]]:
    try:
        return JobSpec.model_validate(document.values), []
    except ValidationError as error:
        return None, explain.explain(error.errors(), document)


def _without_errors(document: source.Document) -> JobSpec | None:
    """The job with its faulty values left out, so that rules across fields can still be checked."""
    values: Any = copy.deepcopy(document.values)
    for _ in range(source.MAX_DEPTH):
        try:
            return JobSpec.model_validate(values)
        except ValidationError as error:
            rest = source.Document(document.file, values)
            for details in error.errors():
                path = explain.written_path(details, rest)
                _remove(values, path[:-1] if details["type"] == "missing" else path)
    return None


def _remove(values: Any, path: source.Path) -> None:
    """Take a value out; a list loses all its items, so that no index moves."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    for part in path[:-1]:
        found = isinstance(values, list) or (isinstance(values, dict) and part in values)
        if not found or (isinstance(values, list) and not values):
            return
        values = values[part]
    if path and isinstance(values, dict):
        values.pop(path[-1], None)


def _why_unreadable(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file; `winnow init` writes a first job"
    if isinstance(error, IsADirectoryError):
        return "is a folder; name the job file in it"
    return f"cannot be read: {error.strerror}"
