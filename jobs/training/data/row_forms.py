"""Decides which form of rows a table has, and which of its columns a first job learns from.

What a column holds says more than what it is called: a column of conversations or spans decides
before usual names do, and a text with a label is what remains.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.errors import DataError, listed, shown
from jobs.spec.row_form import STRUCTURED, FormColumn, RowForm
from jobs.spec.task import VARIANT_MARK, Task
from jobs.training.data import labels
from jobs.training.data.columns import LABEL_NAMES, Column, describe, find_label, find_text
from jobs.training.data.roles import Roles
from jobs.training.data.table import Table

Named = Mapping[str, tuple[str, ...]]
"""The columns that a user named for fields of the data section."""
SEPARATOR = re.compile(r"[,;|]")
"""Matches what separates several labels of one row."""
HEADER_WORDS = 4
"""Words from which on the name of a text column may be a value of the first row."""
TEXT, LABEL = "text", "label"
"""Fields of the form that is found by values."""


@dataclass(frozen=True, slots=True)
class _Match:
    """A form that a table may have."""

    roles: Roles
    strength: int = 0
    """2 for each column that its kind decides, and 1 for each that its name decides."""
    unclear: tuple[str, tuple[str, ...]] | None = None
    """A field and the columns that it may name, if there are several; None otherwise."""


def choose(
    table: Table, name: str, tasks: Sequence[Task], named: Named | None = None, *, task: str = ""
) -> Roles:
    """Returns the form of a table with its columns; `named` and `task` are what the user chose.

    `name` stands for the table in errors.

    Raises:
        DataError: if a named column does not exist, or the columns are ambiguous.
    """
    chosen = dict(named or {})
    _check_fields(chosen, tasks, task)
    table.require_columns([column for columns in chosen.values() for column in columns], name)
    columns = [describe(title, table) for title in table.columns]
    found = [
        match
        for kind in tasks
        for form in kind.learns_from
        if (match := _match(Roles(kind, form, {}), columns, chosen, is_only=bool(task)))
    ]
    if not found:
        raise DataError(_no_form(columns, name, tasks, task))
    best = _strongest(found, name)
    if LABEL not in chosen and not best.form.columns[0].names and best.label is not None:
        _check_header(best.texts[0], best.label, table, name)
        _check_single(best.label, table, name)
    return best


def _check_fields(named: Named, tasks: Sequence[Task], task: str) -> None:
    """Raises DataError if the tasks have no forms, or none that has a field that a user named."""
    known = sorted({field for each in tasks for form in each.learns_from for field in form.fields})
    if not known:
        raise DataError(f"there is no first job for {task}; write one from the reference")
    if unknown := sorted(named.keys() - set(known)):
        raise DataError(
            f"{shown(unknown[0])} is no field for a column of {task or 'any task'}; known are"
            f" {listed(known)}"
        )


def _match(
    roles: Roles, columns: Sequence[Column], named: Named, *, is_only: bool
) -> _Match | None:
    """Returns how a table fits a form; None if it does not."""
    form = roles.form
    if not _may_name(form, named):
        return None
    others = [column for column in columns if not column.numbers_rows]
    if form.is_whole_table and not is_only and len(others) > 1:
        return None
    match = _Match(replace(roles, columns=named), len(named))
    by_name = [column for column in form.columns if column.names]
    by_value = [column for column in reversed(form.columns) if not column.names]
    for column in (*by_name, *by_value):
        if column.field not in named:
            found = _with(match, column, columns)
            if found is None:
                return None
            match = found
        elif column.is_label and not _has_kind(column, columns, named):
            return None
    in_order = {field: match.roles.columns[field] for field in form.fields}
    return replace(match, roles=replace(match.roles, columns=in_order))


def _may_name(form: RowForm, named: Named) -> bool:
    counts = {column.field: column.counts for column in form.columns}
    return all(len(columns) in counts.get(field, ()) for field, columns in named.items())


def _has_kind(label: FormColumn, columns: Sequence[Column], named: Named) -> bool:
    return all(c.kind in label.kinds for c in columns if c.name in named[label.field])


def _with(match: _Match, wanted: FormColumn, columns: Sequence[Column]) -> _Match | None:
    """Returns the match with one more field; None if no column is what it names."""
    taken = match.roles.used
    free = [column for column in columns if column.name not in taken]
    names, strength = _by_name(wanted, free) if wanted.names else _by_value(wanted, free)
    fits = len(names) in wanted.counts
    if not names or not (fits or wanted.names):
        return None
    unclear = match.unclear if fits else (wanted.field, names)
    added = {**match.roles.columns, wanted.field: names}
    return _Match(replace(match.roles, columns=added), match.strength + strength, unclear)


def _by_name(wanted: FormColumn, free: Sequence[Column]) -> tuple[tuple[str, ...], int]:
    """Returns the columns that may be meant, and how much they say of the form."""
    fitting = [c for c in free if c.kind in wanted.kinds and not (c.kind == "text" and c.repeats)]
    called = [column for column in fitting if column.name.lower() in wanted.names]
    exact = [column for column in called if column.name.lower() == wanted.field]
    found = exact or called or (fitting if wanted.may_have_any_name else [])
    strength = 2 if STRUCTURED.issuperset(wanted.kinds) else 1
    return tuple(column.name for column in found), strength


def _by_value(wanted: FormColumn, free: Sequence[Column]) -> tuple[tuple[str, ...], int]:
    """Returns the text or label columns, and how much they say of the form."""
    if not wanted.is_label:
        return find_text(free), 0
    label = find_label(free)
    if label is None or label.kind not in wanted.kinds:
        return (), 0
    is_called = label.name.lower() in LABEL_NAMES
    return (label.name,), (2 if label.kind in STRUCTURED else 1) if is_called else 0


def _strongest(found: Sequence[_Match], name: str) -> Roles:
    """Returns the form that most speaks for; raises DataError if several are as likely."""
    most = max(match.strength for match in found)
    first, *others = [match for match in found if match.strength == most]
    if first.unclear is not None:
        field, columns = first.unclear
        raise DataError(
            f"{name} has the columns {listed(columns)} for {field} of {_base(first.roles.task)};"
            f" name one with --column {field}=COLUMN"
        )
    rival = next((match for match in others if _differ(match, first)), None)
    if rival is not None:
        ways = " or ".join(_shown(match.roles) for match in (first, rival))
        raise DataError(f"{name} has columns for {ways}; choose with --task NAME")
    own = _base(first.roles.task)
    complete = [match for match in found if match.unclear is None]
    names = dict.fromkeys(_base(match.roles.task) for match in complete)
    return replace(first.roles, also_fits=tuple(other for other in names if other != own))


def _differ(match: _Match, other: _Match) -> bool:
    return set(match.roles.used) != set(other.roles.used)


def _shown(roles: Roles) -> str:
    return f"{_base(roles.task)} ({', '.join(roles.used)})"


def _base(task: Task) -> str:
    return task.name.partition(VARIANT_MARK)[0]


def _no_form(columns: Sequence[Column], name: str, tasks: Sequence[Task], task: str) -> str:
    if task:
        forms = dict.fromkeys(form.fields for kind in tasks for form in kind.learns_from)
        ways = " or ".join(" ".join(f"--column {field}=COLUMN" for field in form) for form in forms)
        return (
            f"{name} has the columns {listed(c.name for c in columns)}, and it is not clear which"
            f" are for {task}; name them with {ways}"
        )
    if len(columns) == 1:
        return (
            f"{name} has only the column {columns[0].name!r}; training needs a text and a label"
            " column, or a column of conversations, which are lists of {role, content}, or plain"
            " documents in a column called text"
        )
    listing = ", ".join(column.name for column in columns)
    has_lists = any(column.kind in (*STRUCTURED, "nested") for column in columns)
    hint = "; conversations are one column with lists of {role, content}" if has_lists else ""
    return (
        f"{name} has the columns {listing}, and it is not clear which are text and label; name them"
        f" with --text COLUMN (twice for pairs) and --label COLUMN, or choose another task with"
        f" --task NAME and its columns with --column FIELD=COLUMN{hint}"
    )


def _check_header(text: str, label: str, table: Table, name: str) -> None:
    """Raises DataError if the column names look like the first row of a file without a header."""
    if len(text.split()) >= HEADER_WORDS and label in map(str, table.values(label)):
        raise DataError(
            f"{name} has no header: the names of its columns, {text!r:.60} and {label!r}, look like"
            " a row; write a first line with names such as text and label"
        )


def _check_single(label: str, table: Table, name: str) -> None:
    """Raises DataError if a value of the label column joins several labels of other rows."""
    known = {str(value) for value in labels.named(table, label)}
    for value in sorted(known):
        parts = {part.strip() for part in SEPARATOR.split(value)}
        if len(parts) > 1 and parts <= known:
            raise DataError(
                f"{name}: {shown(value)} in column {label!r} lists several labels, and a classifier"
                f" gives one; keep one in each row, or use it as a label with --label {label}; to"
                " learn several, write a job with problem: multi-label and a separator"
            )
