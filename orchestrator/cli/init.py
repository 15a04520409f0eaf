"""`winnow init`: writes a first job file."""

import importlib.resources
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jobs.errors import DataError, RunError
from jobs.loader import loads
from jobs.loader.rows import rows_match
from jobs.spec import JobSpec, task_registry
from jobs.spec.data import FOLDERS, FORMATS, SourceSpec
from jobs.spec.paths import why_unreadable
from jobs.storage import files
from jobs.storage.storage import S3_SCHEME
from jobs.training.data import holdout, row_forms, sources, writers
from jobs.training.data import roles as row_roles
from jobs.training.data.roles import Roles, RowLabels
from jobs.training.data.row_forms import Named
from jobs.training.data.table import Table
from orchestrator.cli.options import AsJson, print_json
from orchestrator.decisions import first_job
from orchestrator.decisions.first_job import FirstJob, Found, FoundSplit

DEFAULT = task_registry.find(task_registry.DEFAULT_TASK)
EXAMPLE = FirstJob(
    name="my-classifier",
    train=SourceSpec(path="data/train.csv"),
    eval=SourceSpec(path="data/eval.csv"),
    roles=Roles(DEFAULT, DEFAULT.learns_from[0], {"text": ("text",), "label": ("label",)}),
)
"""Content of the job file without --data."""
EVAL_SPLITS = ("validation", "valid", "val", "dev", "eval", "test")
"""Names of evaluation splits of a saved folder, the most common first."""
NEXT = ("validate", "run")
"""Commands to run next."""


def init(
    path: Annotated[Path, typer.Argument(help="The job file to write.")] = Path("job.yaml"),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Training rows: a file, a pattern or a save_to_disk folder."
        ),
    ] = None,
    eval_data: Annotated[
        str | None,
        typer.Option(
            "--eval", metavar="FILE", help="Evaluation rows; by default split off --data."
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column with the text; twice for sentence pairs."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the label.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="Column of a field of the data section, such as source=article; repeatable.",
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="NAME", help="What to learn; by default what the columns suit.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a first job file: an example to change, or the job for your own rows."""
    if path.exists():
        raise RunError(f"{path} exists already; name another file")
    if data is not None:
        choice = _choice(text or (), label, column or (), task)
        found = _write_for(data, eval_data, path, choice)
        if as_json:
            print_json(found)
        else:
            typer.echo(first_job.summary(found))
        return
    if eval_data is not None or text or label is not None or column or task:
        raise RunError(
            "--eval, --text, --label, --column and --task say how to read --data; add --data FILE"
        )
    files.write_new({path: _job_file(EXAMPLE, path)})
    if as_json:
        print_json({"written": str(path)})
    else:
        typer.echo(f"wrote {path}; change it, then: winnow validate {path}")


@dataclass(frozen=True, slots=True)
class _Split:
    """The rows of a split and their source."""

    source: SourceSpec
    """Source with a path relative to the working directory."""
    rows: Table


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the user said of the rows."""

    columns: Named
    task: str
    """Empty for the task that the columns suit."""


def _choice(text: Sequence[str], label: str | None, columns: Sequence[str], task: str) -> _Choice:
    """Returns the columns of each field, and the task.

    Raises:
        DataError: for too many texts, and for a --column that is no FIELD=COLUMN.
    """
    if len(text) > 2:
        raise DataError(f"--text names {len(text)} columns; name one, or two of sentence pairs")
    named = {"text": tuple(text), "label": () if label is None else (label,)}
    for each in columns:
        field, mark, column = each.partition("=")
        if not (field and mark and column):
            raise DataError(f"--column {each} is not FIELD=COLUMN, such as source=article")
        named[field] = (*named.get(field, ()), column)
    return _Choice({field: names for field, names in named.items() if names}, task)


def _write_for(name: str, eval_name: str | None, path: Path, choice: _Choice) -> Found:
    """Write the job file, and the split rows if there are no evaluation rows; returns a report.

    Raises:
        DataError: if no job suits the rows; nothing is written.
        StorageError: if a file exists already or cannot be written; nothing is written.
    """
    train, held_back = _read(name, eval_name)
    tasks = first_job.tasks_called(choice.task)
    roles = row_forms.choose(train.rows, name, tasks, choice.columns, task=choice.task)
    spec = _checked(train, held_back, roles, path)
    labels = row_roles.labels_of(train.rows, roles, name)
    parts = (train, held_back) if held_back else _split(train, roles, labels, path)
    job = FirstJob(
        name=first_job.name_of(name),
        train=_seen_from(path, parts[0].source),
        eval=_seen_from(path, parts[1].source),
        roles=roles,
        labels=row_roles.counted(labels),
        max_length=_length(train.rows, roles, spec.data.sequences or (roles.texts,)),
        max_target_length=_length(train.rows, roles, (spec.data.target_columns,)),
        highest_score=_highest_score(train, held_back, roles),
    )
    new = () if held_back else parts
    contents = {Path(part.source.shown): writers.to_json_lines(part.rows) for part in new}
    # the job file is written last, when the files that it names are complete
    files.write_new({**contents, path: _job_file(job, path)})
    return _report(job, train.rows, parts, (*contents, path))


def _report(
    job: FirstJob, rows: Table, parts: tuple[_Split, _Split], written: Sequence[Path]
) -> Found:
    path = str(written[-1])
    return Found(
        written=path,
        files=tuple(map(str, written[:-1])),
        task=job.roles.task.name,
        rows=len(rows),
        columns=job.roles.texts,
        label=job.roles.label,
        fields=job.roles.columns,
        also_fits=job.roles.also_fits,
        left_out=tuple(name for name in rows.columns if name not in job.roles.used),
        labels=job.labels,
        train=_found(job.train, parts[0]),
        eval=_found(job.eval, parts[1]),
        next=tuple(f"winnow {command} {shlex.quote(path)}" for command in NEXT),
    )


def _found(source: SourceSpec, part: _Split) -> FoundSplit:
    return FoundSplit(source.shown, len(part.rows), None if source.is_file else source.split)


def _read(name: str, eval_name: str | None) -> tuple[_Split, _Split | None]:
    """Returns the training rows, and the evaluation rows if there are any."""
    source = _source(name)
    rows = sources.read(source)
    if len(rows) < 2:
        raise DataError(f"{name} has 1 row; training and evaluation need two or more")
    held_back = _eval_source(source, eval_name)
    return _Split(source, rows), _Split(held_back, sources.read(held_back)) if held_back else None


def _source(name: str) -> SourceSpec:
    """Returns the source for files, a pattern or a folder.

    Raises:
        DataError: for any other name.
    """
    is_folder = files.expanded(name).is_dir()
    path = f"./{name}" if is_folder and not name.startswith(FOLDERS) else name
    if problem := why_unreadable(path):
        raise DataError(f"{name} {problem}")
    source = SourceSpec(path=path)
    if not source.is_file and not is_folder:
        raise DataError(
            f"{name} is neither a folder here nor a file that ends in {', '.join(FORMATS)}"
        )
    return source


def _eval_source(source: SourceSpec, eval_name: str | None) -> SourceSpec | None:
    """Returns the source in --eval, else an evaluation split of a saved folder, else None."""
    held_back = source if eval_name is None else _source(eval_name)
    split = next((name for name in EVAL_SPLITS if name in sources.splits(held_back)), None)
    if split is not None:
        return held_back.model_copy(update={"split": split})
    if eval_name is None:
        return None
    if not set(files.matching(source.shown)).isdisjoint(files.matching(held_back.shown)):
        raise DataError(f"--eval {eval_name} has rows of --data; leave it out to split some off")
    return held_back


def _length(rows: Table, roles: Roles, sequences: Sequence[Sequence[str]]) -> int:
    """Returns the length in tokens that suits the texts of each sequence of columns."""
    texts = [each for names in sequences for each in row_roles.texts_of(rows, names)]
    return first_job.length_for(texts or [()], roles.task)


def _highest_score(train: _Split, held_back: _Split | None, roles: Roles) -> int:
    splits = (train, held_back) if held_back else (train,)
    return max(row_roles.highest_number(split.rows, roles) for split in splits)


def _checked(train: _Split, held_back: _Split | None, roles: Roles, path: Path) -> JobSpec:
    """Return the job; raises DataError if training cannot use the columns, texts or labels."""
    later = SourceSpec(path=first_job.file_of(train.source.shown, "eval"))
    job = FirstJob(
        name="checked",
        train=train.source,
        eval=held_back.source if held_back else later,
        roles=roles,
        highest_score=_highest_score(train, held_back, roles),
    )
    spec = loads(_job_file(job, path), str(path))
    splits = {"train": train.rows, **({"eval": held_back.rows} if held_back else {})}
    for violation in rows_match(spec, splits):
        raise DataError(violation.message)
    return spec


def _split(
    data: _Split, roles: Roles, labels: Sequence[RowLabels], path: Path
) -> tuple[_Split, _Split]:
    """Split one source into training and evaluation rows, with the paths of their new files."""
    texts = row_roles.texts_of(data.rows, roles.inputs)
    classes = [row[0] if roles.has_single_labels else "" for row in labels]
    held_back = holdout.with_known_labels(holdout.hold_back(texts, classes), labels)
    if not held_back:
        of_label = " of the same label" if any(labels) else ""
        raise DataError(
            f"{data.source.shown} has no two rows{of_label} with different texts, so no row can be"
            " held back for evaluation; name evaluation rows with --eval FILE"
        )
    others = sorted(set(range(len(data.rows))) - set(held_back))
    places = [path.with_name(first_job.file_of(data.source.shown, p)) for p in ("train", "eval")]
    train, evaluated = (
        _Split(SourceSpec(path=str(place)), data.rows.take(rows))
        for place, rows in zip(places, (others, held_back), strict=True)
    )
    return train, evaluated


def _seen_from(job: Path, source: SourceSpec) -> SourceSpec:
    """Returns the source with its path relative to the job file's folder."""
    if source.shown.startswith((S3_SCHEME, "~")):
        return source
    path = Path(source.shown)
    seen = os.path.relpath(path.parent.resolve() / path.name, job.parent.resolve())
    if path.is_absolute() and seen.startswith(".."):
        return source
    is_bare = seen.startswith("~") or (not source.is_file and not seen.startswith(FOLDERS))
    return source.model_copy(update={"path": f"./{seen}" if is_bare else seen})


def _job_file(job: FirstJob, path: Path) -> bytes:
    package, _, name = job.roles.form.template.partition("/")
    template = importlib.resources.files(package).joinpath(name).read_text("utf-8")
    return first_job.fill(template, job, path.name).encode()
