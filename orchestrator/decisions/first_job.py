"""Decides the content of a first job file for a user's rows, and summarises it."""

import math
import re
import string
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import yaml

from jobs.loader.source import read_scalar
from jobs.spec import task_registry
from jobs.spec.data import COMPRESSIONS, FORMATS, SourceSpec
from jobs.spec.row_form import FormColumn
from jobs.spec.task import Task
from jobs.training.data.roles import Roles

TOKENS_PER_WORD = 1.5
"""Typical for English; other languages have more."""
FITTING = 0.95
"""Share of rows that max_length must not cut."""
COLUMNS = "$columns"
"""Line of a template that stands for the fields which name columns."""
SHOWN_LABELS = 10
"""Most labels that are listed; the others are counted."""
COMMENT_COLUMN = 35
"""Column of comments, unless the value before is longer."""
LONGEST_NAME = 63
"""Most characters of a job's name."""
PLAIN = re.compile(r"[A-Za-z./][\w./-]*( [\w./-]+)*", re.ASCII)
"""Text that YAML reads as a string without quotes, if it is no number, boolean or null."""


@dataclass(frozen=True, slots=True)
class FirstJob:
    """The values of a first job file; the rest is in the task's template."""

    name: str
    train: SourceSpec
    """Source with a path relative to the job file, like `eval`."""
    eval: SourceSpec
    roles: Roles
    labels: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each label; empty without labels, or before they are counted."""
    max_length: int = task_registry.find(task_registry.DEFAULT_TASK).lengths[0]
    max_target_length: int = max_length
    """Longest target, in tasks with a decoder."""
    highest_score: float = 1.0
    """Score of two texts that mean the same, in tasks with scores."""


@dataclass(frozen=True, slots=True)
class FoundSplit:
    """The place and number of a split's rows."""

    path: str
    """Relative to the job file."""
    rows: int
    split: str | None = None
    """Name of the split in a saved folder; None for files."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of `winnow init --data FILE`: properties of the rows, and the new files."""

    written: str
    """Path of the job file."""
    files: tuple[str, ...]
    """New files with the rows of both splits; empty if there were evaluation rows."""
    task: str
    rows: int
    columns: tuple[str, ...]
    """Columns of texts, lists and numbers: all that are used, without that of the label."""
    label: str | None
    """Column of the label; None without labels."""
    fields: Mapping[str, tuple[str, ...]]
    """The fields of the data section, each with the columns that it names."""
    also_fits: tuple[str, ...]
    """Other tasks that can learn from the rows."""
    left_out: tuple[str, ...]
    """Unused columns."""
    labels: Mapping[str, int]
    """Number of rows of each label."""
    train: FoundSplit
    eval: FoundSplit
    next: tuple[str, ...]
    """Commands to run next."""


def tasks_called(name: str) -> list[Task]:
    """Returns the tasks of a name, with their variants; all of ours for an empty name.

    Raises:
        TaskError: if no installed package has the task.
    """
    if not name:
        return [kind for task in task_registry.ours() for kind in task.kinds]
    found = task_registry.find(name)
    return list(found.kinds)


def fill(template: str, job: FirstJob, file: str) -> str:
    """Returns the text of the job file; `file` is its name."""
    values = {
        "file": file,
        "name": job.name,
        "train": _source(job.train),
        "eval": _source(job.eval),
        "max_length": str(job.max_length),
        "max_target_length": str(job.max_target_length),
        "highest_score": f"{job.highest_score:g}",
        "labels": _comment(tuple(job.labels)),
    }
    lines = template.splitlines(keepends=True)
    return "".join(
        _column_lines(job.roles, line, values)
        if line.strip() == COLUMNS
        else _fill_line(line, values)
        for line in lines
    )


def _column_lines(roles: Roles, line: str, values: Mapping[str, str]) -> str:
    """Returns a line for each field that names columns, and for each setting of the form."""
    indent, _, end = line.partition(COLUMNS)
    fields = [_column_line(column, roles.columns[column.field]) for column in roles.form.columns]
    settings = [(f"{field}: {_scalar(value)}", "") for field, value in roles.form.settings]
    return "".join(
        f"{_aligned(f'{indent}{code}', string.Template(comment).substitute(values))}{end}"
        for code, comment in (*fields, *settings)
    )


def _column_line(column: FormColumn, names: Sequence[str]) -> tuple[str, str]:
    """Returns the field with its columns, and its comment."""
    written = [_scalar(name) for name in names]
    value = written[0] if len(written) == 1 else f"[{', '.join(written)}]"
    return f"{column.field}: {value}", column.comment


def _fill_line(line: str, values: Mapping[str, str]) -> str:
    """Returns a line with its values, and its comment aligned with those of other lines."""
    code, mark, comment = line.partition("  # ")
    filled = string.Template(code).substitute(values)
    if not mark:
        return filled
    return _aligned(filled.rstrip(), string.Template(comment).substitute(values))


def _aligned(code: str, comment: str) -> str:
    return f"{code:<{COMMENT_COLUMN - 2}}  # {comment}" if comment else code


def summary(found: Found) -> str:
    """Returns the result in lines for the user."""
    lines = [
        f"rows      {found.rows:,} for {found.task}",
        *_found_columns(found),
        *(f"also fits {name}: --task {name}" for name in found.also_fits),
        f"train     {_place(found.train)}",
        f"eval      {_place(found.eval)}",
        f"wrote     {', '.join((*found.files, found.written))}; next:",
        *(f"  {command}" for command in found.next),
    ]
    return "\n".join(lines)


def _found_columns(found: Found) -> list[str]:
    """Returns a line for each field, with the unused columns behind the first."""
    left_out = f" (not used: {', '.join(found.left_out)})" if found.left_out else ""
    counts = [f"{label} ({rows:,})" for label, rows in found.labels.items()]
    labels = f": {first_and_more(counts)}" if counts else ""
    lines = [
        f"{field:<9} {', '.join(names)}{labels if found.label in names else ''}"
        for field, names in found.fields.items()
    ]
    return [f"{lines[0]}{left_out}", *lines[1:]]


def stem_of(path: str) -> str:
    """Returns the name of a file, pattern or folder without extensions, else of its parent."""
    name = PurePath(path)
    while name.suffix.lower() in (*COMPRESSIONS, *FORMATS):
        name = name.with_suffix("")
    found = re.sub(r"[*?\[\]]+", "", name.name).strip("-_.~ ")
    return found or (stem_of(str(name.parent)) if name.parent.name else "data")


def file_of(path: str, split: str) -> str:
    """Returns the name of the new file with the training or evaluation rows of a path."""
    return f"{stem_of(path)}-{split}.jsonl"


def name_of(path: str) -> str:
    """Returns a job's name for a file: ASCII letters in lower case, digits and hyphens."""
    bare = unicodedata.normalize("NFKD", stem_of(path))
    ascii_only = bare.encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", ascii_only).strip("-")[:LONGEST_NAME].strip("-")
    return name or "my-model"


def length_for(texts: Sequence[tuple[str, ...]], task: Task) -> int:
    """Returns max_length for these texts: the task's first length that cuts few rows."""
    words = sorted(sum(len(part.split()) for part in parts) for parts in texts)
    tokens = TOKENS_PER_WORD * words[int(FITTING * (len(words) - 1))]
    return next((length for length in task.lengths if tokens <= length), task.lengths[-1])


def first_and_more(texts: Sequence[str]) -> str:
    """Returns the first SHOWN_LABELS texts in one line, and the number of others."""
    listed, more = ", ".join(texts[:SHOWN_LABELS]), len(texts) - SHOWN_LABELS
    return f"{listed} and {more:,} more" if more > 0 else listed


def _place(found: FoundSplit) -> str:
    split = f", split {found.split}" if found.split else ""
    return f"{found.rows:,} rows: {found.path}{split}"


def _source(source: SourceSpec) -> str:
    split = "" if source.split == "train" else f", split: {_scalar(source.split)}"
    return f"{{path: {_scalar(source.shown)}{split}}}"


def _comment(labels: Sequence[str]) -> str:
    listed = first_and_more([" ".join(label.split()) for label in labels])
    return "".join(filter(str.isprintable, listed)) or "an integer or a string"


def _scalar(text: str) -> str:
    is_plain = PLAIN.fullmatch(text) and all(
        isinstance(read(text), str) for read in (read_scalar, yaml.safe_load)
    )
    if is_plain:
        return text
    quoted = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf)
    return str(quoted).removesuffix("\n")
