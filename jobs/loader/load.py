"""Loads a job file as a JobSpec, or reports all problems in it at once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jobs.errors import JobFileError, Problem
from jobs.loader import explain, overrides, source
from jobs.loader.draft import Draft
from jobs.loader.fields import all_field_paths
from jobs.loader.validation import validate
from jobs.loader.words import path_meant
from jobs.spec import metric_rules, rules, training_rules, unsupported
from jobs.spec.job import JobSpec

RULES: tuple[rules.Rule, ...] = (
    rules.violations,
    metric_rules.violations,
    training_rules.violations,
    unsupported.unsupported,
)
"""Rules across fields that need nothing but the job."""


def load(
    path: Path, *, settings: Sequence[str] = (), extra_rules: Sequence[rules.Rule] = ()
) -> JobSpec:
    """Reads and checks a job file.

    `settings` are `field.path=value` overrides. `extra_rules` are checks that need knowledge this
    package lacks, such as the abilities of each accelerator.

    Raises:
        JobFileError: with all problems of the file.
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
    """Checks the text of a job file; `file` is its name in errors. See `load`."""
    document = overrides.apply(source.parse(text, file), settings)
    checks = (*RULES, check_search_space, *extra_rules)
    problems = [*explain.explain(_errors(document), document), *document.problems]
    draft = Draft(document)
    spec = draft.spec()
    for violation in _violations(spec, checks) if spec else ():
        path = draft.written(violation.path)
        if not draft.may_follow_from_repair(path):
            problems.append(document.problem(path, violation.message))
    if problems or spec is None:
        raise JobFileError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return spec


def check_search_space(spec: JobSpec) -> Iterator[rules.Violation]:
    """Checks that each searched field exists, may be searched, and takes each of its values."""
    for name, space in (spec.sweep.search_space if spec.sweep else {}).items():
        path: rules.Path = ("sweep", "search_space", name)
        if name not in overrides.SEARCHABLE:
            yield rules.Violation(path, _why_not_searched(name))
            continue
        for index, value in enumerate(overrides.values_to_check(space)):
            for message in _value_errors(spec, name, value):
                where = (*path, index) if isinstance(space, tuple) else path
                yield rules.Violation(where, message)


def _value_errors(spec: JobSpec, name: str, value: object) -> list[str]:
    values = spec.model_dump(mode="json")
    overrides.put(values, name, value)
    try:
        changed = JobSpec.model_validate(values)
    except ValidationError as error:
        document = source.Document("", values)
        return [problem.message for problem in explain.explain(error.errors(), document)]
    kinds = {f"{name.rpartition('.')[0]}.{kind}" for kind in ("name", "type")}
    if spec.sweep and kinds & spec.sweep.search_space.keys():
        return []  # the value may suit another optimizer or schedule that is searched
    broken = (violation for rule in training_rules.RULES for violation in rule(changed))
    return [each.message for each in broken if ".".join(map(str, each.path)) == name]


def _why_not_searched(name: str) -> str:
    known = f"; these can be searched: {', '.join(overrides.SEARCHABLE)}"
    if name in all_field_paths():
        return f"cannot be searched{known}"
    return f"is not a field of a job{path_meant(name, overrides.SEARCHABLE) or known}"


def _errors(document: source.Document) -> list[ErrorDetails]:
    try:
        validate(document.values)
    except ValidationError as error:
        return error.errors()
    return []


def _violations(spec: JobSpec, checks: Sequence[rules.Rule]) -> Iterator[rules.Violation]:
    for check in checks:
        yield from check(spec)


def _why_unreadable(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file; `winnow init` writes a first job"
    if isinstance(error, IsADirectoryError):
        return "is a folder; name the job file in it"
    return f"cannot be read: {error.strerror}"
