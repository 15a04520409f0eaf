"""From a job file, or from what would be in one, to a checked job."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster import catalogue
from jobs.errors import (
    CheckpointError,
    JobFileError,
    ModelError,
    Problem,
    RunError,
    first_line,
    hide,
)
from jobs.loader import load, loads
from jobs.loader.files import files_exist
from jobs.loader.rows import rows_suit_the_job
from jobs.loader.variables import Variables
from jobs.spec import JobSpec
from jobs.spec.model import REGISTRY_SCHEME
from jobs.spec.rules import Rule, Violation
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import S3_SCHEME, Storage, open_storage
from orchestrator.decisions.resolve import with_absolute_paths

RAY_JOB_COPY = "runtime_resources"
"""Part of the working directory's path inside a submitted Ray job, which is a throw-away copy."""


def load_job(
    job: str | Path | Mapping[str, Any],
    settings: Sequence[str] | None = None,
    *,
    is_elsewhere: bool = False,
    reads_rows: bool = True,
) -> JobSpec:
    """Load and check a job, with the paths in it made absolute.

    Args:
        job: A job file, or a mapping with the content of one, whose paths are relative to the
            working directory.
        settings: Changes of single fields, each as `path=value`, such as `train.epochs=1`.
        is_elsewhere: Whether the job runs on another machine: it keeps its paths, and its files are
            not looked for here.
        reads_rows: Whether the rows of its data are checked, which nothing that trains nothing
            needs.

    Raises:
        JobFileError: with every problem that was found.
    """
    folder = Path.cwd() if isinstance(job, Mapping) else Path(job).parent
    of_rows = (rows_suit_the_job(folder),) if reads_rows else ()
    of_files = () if is_elsewhere else (_with_base(files_exist(folder), *of_rows),)
    rules = (catalogue.accelerator_rules, *of_files)
    if isinstance(job, Mapping):
        spec = loads(_text(job), "job", settings=settings or (), extra_rules=rules, folder=folder)
    else:
        spec = load(Path(job), settings=settings or (), extra_rules=rules)
    if is_elsewhere:
        _check_sent(spec)
        return spec
    _take_secrets(spec, folder)
    return with_absolute_paths(_with_located_base(spec), folder)


def serving_of(spec: JobSpec, purpose: str, file: str | None = None) -> ServeSpec:
    """The serve section of a job; JobFileError where it has none, with what it is needed for."""
    if spec.serve is None:
        what = f"is required to {purpose}; add route"
        raise JobFileError([Problem(file or f"job {spec.name}", 0, 0, "serve", what)])
    return spec.serve


def storage_of(spec: JobSpec) -> Storage:
    """Where a job keeps its runs; a submitted job's relative storage goes to the home folder."""
    is_copy = RAY_JOB_COPY in str(Path.cwd())
    if is_copy and not spec.storage.startswith((S3_SCHEME, "/", "~")):
        return open_storage(Path.home() / spec.storage)
    return open_storage(spec.storage)


def load_served(
    job: Path, settings: Sequence[str] | None, purpose: str
) -> tuple[JobSpec, ServeSpec]:
    """Load a job and its serve section.

    Raises:
        JobFileError: if it has no serve section, which `purpose` requires.
    """
    spec = load_job(job, settings, reads_rows=False)
    return spec, serving_of(spec, purpose, str(job))


def unset_secrets(spec: JobSpec) -> tuple[str, ...]:
    """Returns a remark on the job's secret variables that this process does not have."""
    missing = [name for name in spec.secret_names if not os.environ.get(name)]
    if not missing:
        return ()
    verb = "are" if len(missing) > 1 else "is"
    return (
        f"{', '.join(missing)} {verb} not set here; the job names secrets, which have to be set"
        " where it is run",
    )


def _check_sent(spec: JobSpec) -> None:
    """Raise JobFileError if the job needs a URL that it keeps to this process."""
    problems = [
        Problem(
            f"job {spec.name}",
            0,
            0,
            f"notify[{index}].webhook",
            "is a URL, which is not sent"
            " to another machine; put it into a variable there and write env:NAME",
        )
        for index, place in enumerate(spec.notify)
        if place.variable is None
    ]
    if problems:
        raise JobFileError(problems)


def _take_secrets(spec: JobSpec, folder: Path) -> None:
    """Set the variables that the job names as secrets and only its `.env` has."""
    variables = Variables(folder, {})
    for name in spec.secret_names:
        found = None if os.environ.get(name) else variables.get(name)
        if found is not None:
            os.environ[name] = found.text
    hide(spec.secret_names)


def _with_located_base(spec: JobSpec) -> JobSpec:
    if not spec.model.base.startswith(REGISTRY_SCHEME):
        return spec
    from orchestrator.records import bases  # imports numpy, which other jobs need not pay for

    return bases.with_located_base(spec, storage_of(spec))


def _with_base(*rules: Rule) -> Rule:
    """Returns the rules in one, for a job whose base is found in its storage."""

    def check(spec: JobSpec) -> Iterator[Violation]:
        try:
            located = _with_located_base(spec)
        except (ModelError, RunError, CheckpointError) as error:
            yield Violation(("model", "base"), str(error))
            return
        for rule in rules:
            yield from rule(located)

    return check


def _text(job: Mapping[str, Any]) -> str:
    try:
        return yaml.safe_dump(dict(job), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        what = f"holds a value that YAML has no word for: {first_line(error)}"
        raise JobFileError([Problem("job", 0, 0, "", what)]) from None
