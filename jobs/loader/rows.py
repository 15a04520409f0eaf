"""A rule that reads local data files: their columns, texts and labels fit the job."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import DataError, ModelError
from jobs.spec import JobSpec, task_registry
from jobs.spec.data import SourceSpec
from jobs.spec.rules import Rule, Violation
from jobs.storage import files
from jobs.storage.storage import S3_SCHEME
from jobs.training.model import location

if TYPE_CHECKING:
    from jobs.training.data.checks import RowChecks
    from jobs.training.data.table import Table

LARGEST_FILES = 32 * 2**20
"""Bytes: larger splits are not read here; training checks them."""
OFFSET_TYPES = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "xmod", "mpnet", "ibert")
"""Model types whose first position is the padding token's id plus 1."""
LEARNT_TYPES = (*OFFSET_TYPES, "bert", "distilbert", "electra", "albert", "gpt2", "opt", "bart")
"""Model types with learned position embeddings, which limit the length of a row."""


def rows_suit_the_job(folder: Path) -> Rule:
    """Returns a rule that checks columns, texts, labels and lengths in the job's local files.

    Paths are relative to the job file's folder.
    """

    def check(spec: JobSpec) -> Iterator[Violation]:
        yield from violations(spec, functools.partial(read_here, folder=folder))
        yield from _length_fits(spec, folder)

    return check


def violations(spec: JobSpec, read: Callable[[SourceSpec], "Table | None"]) -> Iterator[Violation]:
    """Checks the rows of both splits; `read` returns the rows of a source, or None to skip them."""
    tables: dict[str, Table] = {}
    for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        try:
            rows = read(source)
        except DataError as error:
            yield Violation(("data", split, "path"), str(error))
            continue
        if rows is not None:
            tables[split] = rows
    yield from rows_match(spec, tables)


def rows_match(spec: JobSpec, tables: Mapping[str, "Table"]) -> Iterator[Violation]:
    """Checks that the columns and values of the splits in `tables` are what the task takes."""
    if tables:
        checks: RowChecks = task_registry.resolve(spec.task.checks)
        for field, message in checks.violations(spec.data, tables):
            yield Violation(("data", field), message)


def read_here(source: SourceSpec, folder: Path = Path()) -> "Table | None":
    """Returns all rows of a split from local files; None if it is not local or too large.

    Paths are relative to `folder`.

    Raises:
        DataError: if a file cannot be read.
    """
    places = files.local_files(source, folder)
    if not places:
        return None
    from jobs.training.data import readers  # imports pyarrow, which jobs without files need not

    return readers.read_files(places, LARGEST_FILES)


def _length_fits(spec: JobSpec, folder: Path) -> Iterator[Violation]:
    base = spec.model.base
    if base.startswith(S3_SCHEME):
        return  # models in S3 are checked when they are used
    try:
        place = location.locate(location.seen_from(folder, base), has_weights=False)
        config = location.read_config(place) if isinstance(place, Path) else {}
    except (ModelError, OSError):
        return  # `files_exist` reports this error
    room = _positions(config)
    if room and spec.data.max_length > room:
        message = f"{spec.data.max_length} is more than the {room} tokens that {base} takes"
        yield Violation(("data", "max_length"), f"{message}; write {room} or less")


def _positions(config: dict[str, object]) -> int:
    """Returns the longest row in tokens that a configuration allows; 0 if that is unknown."""
    kind, most = config.get("model_type"), config.get("max_position_embeddings")
    if kind not in LEARNT_TYPES or not isinstance(most, int) or most < 1:
        return 0
    pad = config.get("pad_token_id", 1)
    return most - (int(pad) + 1 if kind in OFFSET_TYPES and isinstance(pad, int) else 0)
