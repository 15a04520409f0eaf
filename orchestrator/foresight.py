"""What a job needs from elsewhere, looked at while planning and before any device is taken.

`winnow validate` checks what is on this machine; here are data and models in S3 and on the hub,
folders of `datasets`, the tracking server, the storage, and packages that only some jobs need.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import httpx

from cluster import catalogue
from jobs.errors import DataError, JobFileError, ModelError, Problem, StorageError
from jobs.loader import rows
from jobs.spec import JobSpec
from jobs.spec.data import SourceSpec
from jobs.spec.rules import Violation
from jobs.spec.serve import EngineName
from jobs.storage import files
from jobs.storage.bucket import BucketObjects
from jobs.storage.storage import S3_SCHEME, open_storage
from jobs.training.model import location
from serve.engines import packages

if TYPE_CHECKING:
    from jobs.training.data.table import Table

TIMEOUT_S = 5.0
"""How long the tracking server and the hub may take to answer. Workers may reach a hub that this
process does not, so one that does not answer is no fault of the job."""


def _names(engine: EngineName, spec: JobSpec) -> bool:
    """Whether a job names an engine to serve with."""
    return bool(spec.serve and spec.serve.engine == engine)


PACKAGES: tuple[tuple[str, str, str, Callable[[JobSpec], bool]], ...] = (
    ("tracking.mlflow", "mlflow", "mlflow", lambda s: bool(s.tracking and s.tracking.mlflow)),
    ("serve.grpc", "tritonclient", "grpc", lambda s: bool(s.serve and s.serve.grpc)),
    *(
        ("serve.engine", package, packages.EXTRA, functools.partial(_names, engine))
        for engine, needed in packages.NEEDS.items()
        for package in needed
    ),
)
"""Field, the package that it needs, the extra of ours with it, and whether a job uses it."""


def check(spec: JobSpec, *, is_trained: bool = False) -> None:
    """Raise JobFileError with everything that the job needs and that is not there.

    A run that is trained needs neither rows nor base any more. Raises StorageError where S3 may
    answer later.
    """
    rules = (_packages, _storage) if is_trained else (_packages, _storage, _tracking, _base, _rows)
    found = [
        Problem(f"job {spec.name}", 0, 0, ".".join(map(str, violation.path)), violation.message)
        for rule in rules
        for violation in rule(spec)
    ]
    if found:
        raise JobFileError(found)


def remarks(spec: JobSpec) -> tuple[str, ...]:
    """What the job can do without and will not have: engines for CPUs that are not installed."""
    serve = spec.serve
    if serve is None or serve.engine != "auto" or "engine" not in spec.task.serve_fields:
        return ()
    if serve.accelerators.name.lower() != catalogue.CPU:
        return ()
    ending = "" if serve.precision == "auto" else f"-{serve.precision}"
    text = packages.left_out(name for name in packages.NEEDS if name.endswith(ending))
    return (text,) if text else ()


def check_base(spec: JobSpec) -> None:
    """Raise ModelError where the base cannot be used for the task; takes seconds, for torch."""
    from jobs.training.model import base

    place = location.locate(spec.model.base, has_weights=False)
    if isinstance(place, Path):
        base.check_base(spec.model, place)


def _packages(spec: JobSpec) -> Iterator[Violation]:
    for field, package, extra, is_used in PACKAGES:
        if is_used(spec) and importlib.util.find_spec(package) is None:
            message = f"needs the package {package}; pip install 'raywinnow[{extra}]'"
            yield Violation(tuple(field.split(".")), message)


def _tracking(spec: JobSpec) -> Iterator[Violation]:
    uri = spec.tracking.mlflow.uri if spec.tracking and spec.tracking.mlflow else ""
    if not uri.startswith(("http://", "https://")):
        return
    try:
        # MLflow itself knows which certificate it trusts
        httpx.get(uri, timeout=TIMEOUT_S, verify=False)
    except httpx.ReadTimeout:
        return  # it is there, and just waking up
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        message = f"no server answers at {uri}: {error or type(error).__name__}"
        yield Violation(("tracking", "mlflow", "uri"), message)


def _storage(spec: JobSpec) -> Iterator[Violation]:
    if spec.storage.startswith(S3_SCHEME):
        try:
            open_storage(spec.storage).objects.children("runs")
        except StorageError as error:
            if error.is_passing:
                raise
            yield Violation(("storage",), str(error))


def _base(spec: JobSpec) -> Iterator[Violation]:
    """Whether it is there, with a tokenizer; of a model on the hub the files are listed."""
    base = spec.model.base
    try:
        place = location.locate(base, has_weights=False)
        if isinstance(place, Path):
            location.check(place, base, has_weights=False)
            return
    except ModelError as error:
        yield Violation(("model", "base"), str(error))
        return
    names = _files_on_hub(place, "model")
    if names is not None and "config.json" not in names:
        where = "has no config.json" if names else "is not on the hub, or not for you"
        message = f"{place} {where}; name a model of transformers, or a folder such as ./{place}"
        yield Violation(("model", "base"), message)


def _files_on_hub(name: str, kind: Literal["model", "dataset"]) -> set[str] | None:
    """Of a repository; empty where there is none, None where the hub does not answer."""
    import huggingface_hub  # half a second that local models need not pay
    import huggingface_hub.errors

    try:
        found = huggingface_hub.HfApi().repo_info(name, repo_type=kind, timeout=TIMEOUT_S)
    except huggingface_hub.errors.RepositoryNotFoundError:
        return set()
    except Exception:  # noqa: BLE001 - a hub out of reach is told in many ways; workers may reach it
        return None
    return {file.rfilename for file in found.siblings or ()}


def _rows(spec: JobSpec) -> Iterator[Violation]:
    """Columns, texts and labels of splits that are not both in files of this machine.

    Of data sets on the hub nothing is read: they are there, or not.
    """
    for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        if (
            not source.is_local
            and not source.is_file
            and _files_on_hub(source.shown, "dataset") == set()
        ):
            message = f"{source.shown} is not on the hub, or not for you"
            yield Violation(("data", split, "path"), message)
    if not all(source.is_local and source.is_file for source in (spec.data.train, spec.data.eval)):
        yield from rows.violations(spec, _read)


def _read(source: SourceSpec) -> "Table | None":
    """Rows of a split; None where they are too many, or on the hub. Raises DataError."""
    if source.is_local and source.is_file:
        return rows.read_here(source)
    if not source.is_local and not source.is_file:
        return None
    from jobs.training.data import sources  # seconds that files of this machine need not pay

    try:
        is_large = sum(map(_size, source.paths)) > rows.LARGEST_FILES
        return None if is_large else sources.read(source)
    except StorageError as error:
        if error.is_passing:
            raise
        raise DataError(str(error)) from None


def _size(path: str) -> int:
    """Bytes of an object in S3, or of what is here. Raises StorageError."""
    if not path.startswith(S3_SCHEME):
        return sum(map(files.size_of, files.matching(path)))
    place, _, key = path.removeprefix(S3_SCHEME).partition("/")
    return BucketObjects(f"{S3_SCHEME}{place}").size(key)
