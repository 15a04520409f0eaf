"""Decides the content of a first job file for a user's rows, and summarises it."""

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import yaml

from jobs.loader.source import read_scalar
from jobs.spec import task_registry
from jobs.spec.data import COMPRESSIONS, FORMATS, SourceSpec
from jobs.spec.task import Task
from jobs.training.data.columns import Roles
from jobs.training.data.labels import in_order

TOKENS_PER_WORD = 1.5
"""Typical for English; other languages have more."""
FITTING = 0.95
"""Share of rows that max_length must not cut."""
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

    @property
    def task(self) -> Task:
        """The task that suits the columns."""
        return task_for(self.roles)


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
    """Input columns: one text, two texts of a pair, or the conversations."""
    label: str | None
    """Column of the label; None without labels."""
    left_out: tuple[str, ...]
    """Unused columns."""
    labels: Mapping[str, int]
    """Number of rows of each label."""
    train: FoundSplit
    eval: FoundSplit
    next: tuple[str, ...]
    """Commands to run next."""


def task_for(roles: Roles) -> Task:
    """Returns the task that learns from such columns."""
    return next(task for task in task_registry.ours() if task.learns_from == roles.kind)


def fill(template: str, job: FirstJob, file: str) -> str:
    """Returns the text of the job file; `file` is its name."""
    text = [_scalar(column) for column in job.roles.text]
    values = {
        "file": file,
        "name": job.name,
        "train": _source(job.train),
        "eval": _source(job.eval),
        "max_length": str(job.max_length),
        "text": text[0] if len(text) == 1 else f"[{', '.join(text)}]",
        "label": _scalar(job.roles.label or ""),
        "labels": _comment(tuple(job.labels)),
        "messages": _scalar(job.roles.messages or ""),
    }
    return "".join(_fill_line(line, values) for line in template.splitlines(keepends=True))


def _fill_line(line: str, values: Mapping[str, str]) -> str:
    """Returns a line with its values, and its comment aligned with those of other lines."""
    code, mark, comment = line.partition("  # ")
    filled = string.Template(code).substitute(values)
    if not mark:
        return filled
    return (
        f"{filled.rstrip():<{COMMENT_COLUMN - 2}}  # {string.Template(comment).substitute(values)}"
    )


def summary(found: Found) -> str:
    """Returns the result in lines for the user."""
    left_out = f" (not used: {', '.join(found.left_out)})" if found.left_out else ""
    counts = [f"{label} ({rows:,})" for label, rows in found.labels.items()]
    lines = [
        f"rows      {found.rows:,} for {found.task}",
        f"{'text' if found.label else 'messages':<9} {', '.join(found.columns)}{left_out}",
        *([f"label     {found.label}: {first_and_more(counts)}"] if found.label else []),
        f"train     {_place(found.train)}",
        f"eval      {_place(found.eval)}",
        f"wrote     {', '.join((*found.files, found.written))}; next:",
        *(f"  {command}" for command in found.next),
    ]
    return "\n".join(lines)


def counted(labels: Sequence[str]) -> dict[str, int]:
    """Returns the number of rows of each label, in the order in which training numbers labels."""
    counts = Counter(labels)
    return {label: counts[label] for label in in_order(labels)}


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
