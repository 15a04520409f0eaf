"""Loads a job file as a JobSpec, or reports all problems in it at once."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jobs.errors import JobFileError, Problem
from jobs.loader import explain, layers, overrides, source
from jobs.loader.draft import Draft
from jobs.loader.fields import all_field_paths
from jobs.loader.validation import validate
from jobs.loader.words import path_meant
from jobs.spec import engine_rules, metric_rules, rules, training_rules, unsupported
from jobs.spec.job import JobSpec

RULES: tuple[rules.Rule, ...] = (
    rules.violations,
    metric_rules.violations,
    training_rules.violations,
    unsupported.unsupported,
    engine_rules.engine_suits_the_job,
)
"""Rules across fields that need nothing but the job."""


def load(
    path: Path, *, settings: Sequence[str] = (), extra_rules: Sequence[rules.Rule] = ()
) -> JobSpec:
    """Reads and checks a job file, with the files that it extends.

    `settings` are `field.path=value` overrides. `extra_rules` are checks that need knowledge this
    package lacks, such as the abilities of each accelerator.

    Raises:
        JobFileError: with all problems of the file.
    """
    return _checked(overrides.apply(layers.read(path), settings), extra_rules)


def loads(
    text: str | bytes,
    file: str = "job.yaml",
    *,
    settings: Sequence[str] = (),
    extra_rules: Sequence[rules.Rule] = (),
    folder: Path | None = None,
) -> JobSpec:
    """Checks the text of a job file; `file` is its name in errors. See `load`.

    `folder` has its `.env` and what it extends; without one, `${NAME}` is a plain text.
    """
    document = layers.read_text(text, file, folder) if folder else source.parse(text, file)
    return _checked(overrides.apply(document, settings), extra_rules)


def origins(path: Path, settings: Sequence[str] = ()) -> source.Document:
    """Returns the values of a job file, which tells where each is set; nothing is checked.

    Raises:
        JobFileError: if a file cannot be read, or is no YAML.
    """
    return overrides.apply(layers.read(path), settings)


def _checked(document: source.Document, extra_rules: Sequence[rules.Rule]) -> JobSpec:
    checks = (*RULES, check_search_space, *extra_rules)
    problems = [*explain.explain(_errors(document), document), *document.problems]
    draft = Draft(document)
    spec = draft.spec()
    for violation in _violations(spec, checks) if spec else ():
        path = draft.written(violation.path)
        if not draft.may_follow_from_repair(path):
            problems.append(document.problem(path, violation.message))
    if problems or spec is None:
        raise JobFileError(sorted(problems, key=functools.partial(_order, document)))
    return spec


def _order(document: source.Document, problem: Problem) -> tuple[bool, str, int, int]:
    """Returns the order of a problem: those of --set, of the file, of the files that it extends."""
    is_extended = problem.line > 0 and problem.file != document.file
    return is_extended, problem.file if is_extended else "", problem.line, problem.column


def check_search_space(spec: JobSpec) -> Iterator[rules.Violation]:
    """Checks that each searched field exists, may be searched, and takes each of its values."""
    for name, space in (spec.sweep.search_space if spec.sweep else {}).items():
        path: rules.Path = ("sweep", "search_space", name)
        if name not in overrides.SEARCHABLE:
            yield rules.Violation(path, _why_not_searched(name))
            continue
        if name in overrides.LISTED and not isinstance(space, tuple):
            yield rules.Violation(path, "needs a list of values in square brackets, not a range")
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
