"""Turns pydantic's errors about a job file into problems with a position and a remedy."""

import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import ErrorDetails

from jobs.errors import Problem, shown
from jobs.loader.fields import field_names, values_of
from jobs.loader.habits import SHORT_FORMS
from jobs.loader.source import Document, Path, dotted
from jobs.loader.syntax import key_meant
from jobs.loader.validation import named_task
from jobs.loader.words import did_you_mean, field_of, value_meant
from jobs.spec import task_registry
from jobs.spec.data import DataSpec
from jobs.spec.quantities import parse_cadence
from jobs.spec.task import Task

OF_TASK: tuple[Path, ...] = (
    ("data",),
    ("model", "base"),
    ("model", "adapter"),
    ("serve", "engine"),
    ("serve", "fronts"),
    ("serve", "grpc"),
    ("serve", "rollout", "gate"),
    ("sweep", "objective"),
    ("train", "early_stopping", "metric"),
    ("train", "eval", "harness"),
    ("train", "eval", "metrics"),
)
"""Fields whose rules differ from task to task."""
SHARED = [("data", name) for name in DataSpec.model_fields]
"""Fields of the data section that every task has."""

MESSAGES = {
    "missing": "is required",
    "int_type": "{value} is not a whole number",
    "int_from_float": "{value} is not a whole number",
    "float_type": "{value} is not a number",
    "bool_type": "{value} is not true or false",
    "string_type": "{value} is not text; put it in quotes if text is meant",
    "finite_number": "{value} is not a finite number",
    "greater_than": "{value} must be greater than {gt}",
    "greater_than_equal": "{value} must be at least {ge}",
    "less_than": "{value} must be less than {lt}",
    "less_than_equal": "{value} must be at most {le}",
    "tuple_type": "{value} is not a list; write [a, b]",
    "dict_type": "{value} is not a mapping of keys",
    "model_type": "{value} is not a mapping of keys",
    "too_short": "has {actual_length} items but needs at least {min_length}",
    "too_long": "has {actual_length} items but may have at most {max_length}",
    "string_too_short": "must not be empty",
    "string_too_long": "is longer than {max_length} characters",
    "string_pattern_mismatch": "{value} does not match {pattern}",
}
"""Message for each kind of pydantic error; other kinds keep pydantic's message."""

PATTERNS = {
    "name": (
        "is not a job's name; use up to 63 lower-case letters, digits and inner hyphens, like"
        " sst2-bert"
    ),
    "serve.auth.tokens_file": (
        "is not an absolute path; start with / and write it in full: neither ~ nor $NAME is"
        " expanded here"
    ),
    "serve.route": (
        "is not a route; start with / and use lower-case letters, digits, - and _: /sst2"
    ),
}
"""Message for fields whose regular expression would be hard to read."""


def explain(errors: Iterable[ErrorDetails], document: Document) -> list[Problem]:
    """Turns pydantic's errors into problems, one for each position in the file."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        path = written_path(error, document)
        by_path.setdefault(path, []).append(_without_url(error, path))
    is_unknown = named_task(document.values) is None
    return [
        _problem(path, group, document)
        for path, group in by_path.items()
        if not any(other[: len(path)] == path and len(other) > len(path) for other in by_path)
        and not (is_unknown and path[:1] == ("data",) and follows_from_task(path))
    ]


class _Hidden:
    """Stands in a message for a value that nobody may read."""

    def __repr__(self) -> str:
        return "the value"


def _without_url(error: ErrorDetails, path: Path) -> ErrorDetails:
    """Returns an error that shows no URL of a notification: whoever has it can send there."""
    if path[:1] == ("notify",) and "://" in str(error["input"]):
        return {**error, "input": _Hidden()}
    return error


def follows_from_task(path: Path) -> bool:
    """Returns whether the error at `path` may result from an unknown task."""
    if path == ("data",) or path[:2] in SHARED:
        return False
    return any(path[: len(each)] == each for each in OF_TASK)


def written_path(error: ErrorDetails, document: Document) -> Path:
    """Returns an error's path in the file, without the names that pydantic adds for unions."""
    path: Path = ()
    value: Any = document.values
    parts = error["loc"]
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if isinstance(value, dict) and isinstance(part, str):
            if part in value:
                path, value = (*path, part), value[part]
            elif is_last and error["type"] == "missing":
                path = (*path, part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path, value = (*path, part), value[part]
    return path


def _problem(path: Path, errors: list[ErrorDetails], document: Document) -> Problem:
    first = errors[0]
    if first["type"] == "extra_forbidden":
        task = named_task(document.values)
        if others := _tasks_with(path, task):
            message = f"is for {_either(others)}; the task is {task.name if task else 'another'}"
            return document.problem(path, message, key=True)
        known = field_names(path[:-1], task)
        return document.problem(path, f"unknown key{_key_meant(str(path[-1]), known)}", key=True)
    if dotted(path) in PATTERNS and first["type"] == "string_pattern_mismatch":
        return document.problem(path, f"{_shown(first['input'])} {PATTERNS[dotted(path)]}")
    if all(error["type"] == "literal_error" for error in errors):
        names = [name for error in errors for name in _expected(error)]
        return document.problem(path, _not_one_of(first["input"], names))
    return document.problem(path, " or ".join(dict.fromkeys(_sentence(e) for e in errors)))


def _tasks_with(path: Path, task: Task | None) -> list[str]:
    """Returns the names of other tasks whose data section has the field at `path`."""
    if path[:-1] != ("data",):
        return []
    own = task.data if task else None
    tasks = [each for each in task_registry.every() if each.data is not own]
    return [each.name for each in tasks if path[-1] in each.data.model_fields]


def _either(names: list[str]) -> str:
    """Joins names with commas, and the last two with `or`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _key_meant(word: str, known: list[str]) -> str:
    """Returns a clause that suggests a key in place of an unknown one."""
    first = re.split(r"[\s:=]", word, maxsplit=1)[0]
    if first != word and first in known:
        return f"; write `{key_meant(word)}`"
    if word.lower() in known:
        return f"; write {word.lower()!r}"
    return field_of(word) or did_you_mean(word, known) or f"; known here: {', '.join(known)}"


def _sentence(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    value = _shown(error["input"])
    if error["type"] == "literal_error":
        return _not_one_of(error["input"], _expected(error))
    template = MESSAGES.get(error["type"])
    if template is None:
        return f"{value}: {error['msg']}"
    return template.format(value=value, **context) + _shape_meant(error)


def _shape_meant(error: ErrorDetails) -> str:
    """Returns a clause for text without its colon, or for a list without its dashes."""
    written = error["input"]
    if error["type"] == "model_type" and (section := _section_meant(error)):
        return f"; write {section}"
    if error["type"] == "model_type" and isinstance(written, str):
        meant = key_meant(written)
        return f"; write `{meant}`" if meant and not meant.endswith(":") else ""
    is_dashless = error["type"] == "tuple_type" and isinstance(written, dict)
    return ", or - before each item" if is_dashless else ""


def _section_meant(error: ErrorDetails) -> str:
    """Returns the mapping that a single value in place of a section stands for; else empty."""
    field = SHORT_FORMS.get(dotted(error["loc"]))
    written = error["input"]
    if field is None or not isinstance(written, str | int) or " " in str(written).strip():
        return ""
    meant = _field_meant(dotted(error["loc"]), field, written)
    return f"{{{field}: {meant}}}" if meant else ""


def _field_meant(section: str, field: str, written: str | int) -> str:
    """Returns the value of a section's field that a value stands for; empty if it is none."""
    if field == "patience":
        is_count = type(written) is int and written > 0
        return str(written) if is_count else "3" if written is True else ""
    if field == "every":
        meant = f"1{written}" if written in ("epoch", "step") else str(written)
        meant = f"{written}steps" if type(written) is int else meant.replace("1step", "1steps")
        try:
            parse_cadence(meant)
        except ValueError:
            return ""
        return meant
    known = [str(name) for name in values_of(f"{section}.{field}")]
    meant = value_meant(str(written), known)
    return meant if meant in known else ""


def _expected(error: ErrorDetails) -> list[str]:
    expected = str(error.get("ctx", {})["expected"]).replace(" or ", ", ")
    return [name.strip().strip("'") for name in expected.split(", ")]


def _not_one_of(value: object, names: list[str]) -> str:
    if len(names) == 1:
        return f"{_shown(value)} is not {names[0]}"
    return f"{_shown(value)} is not one of {', '.join(names)}{did_you_mean(str(value), names)}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else shown(value)
