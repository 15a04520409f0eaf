"""Decides what a first job file says about a user's rows, and what the user reads about them."""

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
"""Of English; other languages have more."""
FITTING = 0.95
"""Share of rows that max_length must not cut."""
SHOWN_LABELS = 10
"""Labels that are listed; the others are counted."""
COMMENT_COLUMN = 35
"""Where comments begin, unless the value before is longer."""
LONGEST_NAME = 63
"""Characters of a job's name."""
PLAIN = re.compile(r"[A-Za-z./][\w./-]*( [\w./-]+)*", re.ASCII)
"""Text that YAML takes without quotes, if it is no number, boolean or null."""


@dataclass(frozen=True, slots=True)
class FirstJob:
    """What a first job file says about the rows; the rest stands in its template."""

    name: str
    train: SourceSpec
    """With a path relative to the job file, as that of `eval`."""
    eval: SourceSpec
    roles: Roles
    labels: Mapping[str, int] = field(default_factory=dict)
    """Rows of each label; empty without labels, and while they are not known."""
    max_length: int = task_registry.find(task_registry.DEFAULT_TASK).lengths[0]

    @property
    def task(self) -> Task:
        """What the model learns."""
        return task_for(self.roles)


@dataclass(frozen=True, slots=True)
class FoundSplit:
    """Where the rows of a split are."""

    path: str
    """Relative to the job file."""
    rows: int
    split: str | None = None
    """Name within a saved folder; None for files."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in a user's rows, and what was written for them."""

    written: str
    """The job file."""
    files: tuple[str, ...]
    """New files with the rows of both splits; none where evaluation rows were there already."""
    task: str
    rows: int
    columns: tuple[str, ...]
    """Those with the text: one, two of a pair, or the conversations."""
    label: str | None
    """The column with the label; None without one."""
    left_out: tuple[str, ...]
    """Columns that are not used."""
    labels: Mapping[str, int]
    """Rows of each label."""
    train: FoundSplit
    eval: FoundSplit
    next: tuple[str, ...]
    """Commands to go on with."""


def task_for(roles: Roles) -> Task:
    """The task that learns from such columns."""
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
    """Returns a line with its values, and its comment below those of other lines."""
    code, mark, comment = line.partition("  # ")
    filled = string.Template(code).substitute(values)
    if not mark:
        return filled
    return (
        f"{filled.rstrip():<{COMMENT_COLUMN - 2}}  # {string.Template(comment).substitute(values)}"
    )


def summary(found: Found) -> str:
    """Returns what was found and written, in lines for the user."""
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
    """Returns the number of rows of each label, in the order that training gives the labels."""
    counts = Counter(labels)
    return {label: counts[label] for label in in_order(labels)}


def stem_of(path: str) -> str:
    """The name of a file, pattern or folder without its endings, or of the folder it is in."""
    name = PurePath(path)
    while name.suffix.lower() in (*COMPRESSIONS, *FORMATS):
        name = name.with_suffix("")
    found = re.sub(r"[*?\[\]]+", "", name.name).strip("-_.~ ")
    return found or (stem_of(str(name.parent)) if name.parent.name else "data")


def file_of(path: str, split: str) -> str:
    """The name of the file with the training or evaluation rows that are split off a path."""
    return f"{stem_of(path)}-{split}.jsonl"


def name_of(path: str) -> str:
    """A job's name from that of a file: ASCII letters and digits in lower case, and hyphens."""
    bare = unicodedata.normalize("NFKD", stem_of(path))
    ascii_only = bare.encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", ascii_only).strip("-")[:LONGEST_NAME].strip("-")
    return name or "my-model"


def length_for(texts: Sequence[tuple[str, ...]], task: Task) -> int:
    """Returns max_length for rows with these texts: the default, or more if that cuts many."""
    words = sorted(sum(len(part.split()) for part in parts) for parts in texts)
    tokens = TOKENS_PER_WORD * words[int(FITTING * (len(words) - 1))]
    return next((length for length in task.lengths if tokens <= length), task.lengths[-1])


def first_and_more(texts: Sequence[str]) -> str:
    """Texts in one line: the first SHOWN_LABELS, and how many more there are."""
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
