"""Checks what a job needs beyond this machine, before any device is reserved.

Checks data and models in S3 and on the Hugging Face hub, folders of `datasets`, the tracking
server, the storage, and optional packages. `winnow validate` checks the files of this machine.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cluster import catalogue
from jobs.errors import (
    DataError,
    JobFileError,
    ModelError,
    Problem,
    StorageError,
    TrainingError,
    listed,
    shown,
)
from jobs.loader import rows
from jobs.spec import JobSpec, metric_rules
from jobs.spec.data import SourceSpec
from jobs.spec.harness import MARK, valid_name
from jobs.spec.rules import Violation
from jobs.spec.serve import EngineName, TextEngineName
from jobs.storage import files
from jobs.storage.bucket import BucketObjects
from jobs.storage.storage import S3_SCHEME, open_storage
from jobs.training import harness
from jobs.training.model import abilities, location
from serve.engines import optional_packages

if TYPE_CHECKING:
    from jobs.training.data.table import Table

TIMEOUT_S = 5.0
"""How long the tracking server and the hub may take to answer. A hub that does not answer is no
error, because workers may have access to it."""


def _names(engine: EngineName | TextEngineName, spec: JobSpec) -> bool:
    """Whether a job names an engine to serve with."""
    return bool(spec.serve and spec.serve.engine == engine)


PACKAGES: tuple[tuple[str, str, str, Callable[[JobSpec], bool]], ...] = (
    ("tracking.mlflow", "mlflow", "mlflow", lambda s: bool(s.tracking and s.tracking.mlflow)),
    ("tracking.wandb", "wandb", "wandb", lambda s: bool(s.tracking and s.tracking.wandb)),
    ("train.eval.harness", harness.PACKAGE, "eval", lambda s: s.train.eval.harness is not None),
    ("serve.grpc", "tritonclient", "grpc", lambda s: bool(s.serve and s.serve.grpc)),
    *(
        ("serve.engine", package, optional_packages.EXTRA, functools.partial(_names, engine))
        for engine, needed in optional_packages.NEEDS.items()
        for package in needed
    ),
    *(
        (
            "serve.engine",
            package,
            optional_packages.TEXT_EXTRAS[text],
            functools.partial(_names, text),
        )
        for text, needed in optional_packages.TEXT_NEEDS.items()
        for package in needed
    ),
)
"""Field, package that it needs, Winnow's extra with the package, and whether a job uses it."""


def check(spec: JobSpec, *, is_trained: bool = False) -> None:
    """Check everything that the job needs.

    A run that `is_trained` needs no rows, base model or tracking server.

    Raises:
        JobFileError: with everything that is missing.
        StorageError: if S3 does not answer but may later.
    """
    always, before = (_packages, _storage), (_tracking, _base, _rows, _harness)
    rules = always if is_trained else (*always, *before)
    problems = [
        Problem(f"job {spec.name}", 0, 0, ".".join(map(str, violation.path)), violation.message)
        for rule in rules
        for violation in rule(spec)
    ]
    if problems:
        raise JobFileError(problems)


def remarks(spec: JobSpec) -> tuple[str, ...]:
    """What the job can do without and will not have: engines for CPUs that are not installed."""
    serve = spec.serve
    if serve is None or serve.engine != "auto" or not spec.task.has_scoring_engines:
        return ()
    if serve.accelerators.name.lower() != catalogue.CPU:
        return ()
    ending = "" if serve.precision == "auto" else f"-{serve.precision}"
    text = optional_packages.left_out(
        name for name in optional_packages.NEEDS if name.endswith(ending)
    )
    return (text,) if text else ()


def check_base(spec: JobSpec) -> None:
    """Check that the base model suits the task; takes seconds, because it imports torch.

    Raises:
        ModelError: if the base model cannot be used for the task.
    """
    from jobs.training.model import base

    place = location.locate(spec.model.base, has_weights=False)
    if isinstance(place, Path):
        base.check_base(spec.model, place)


def check_ability(spec: JobSpec) -> None:
    """Check that the type of the base model can do the task, if its configuration is here.

    Raises:
        JobFileError: if it cannot, with the tasks that it can do.
    """
    folder = abilities.folder_of(location.locate(spec.model.base, has_weights=False))
    try:
        if folder is not None:
            abilities.check(spec.model.base, folder, spec.task)
    except ModelError as error:
        problem = Problem(f"job {spec.name}", 0, 0, "model.base", str(error))
        raise JobFileError([problem]) from None


def _packages(spec: JobSpec) -> Iterator[Violation]:
    for field, package, extra, is_used in PACKAGES:
        if is_used(spec) and importlib.util.find_spec(package) is None:
            message = f"needs the package {package}; pip install 'raywinnow[{extra}]'"
            yield Violation(tuple(field.split(".")), message)


def _tracking(spec: JobSpec) -> Iterator[Violation]:
    from orchestrator.tracking.wandb_runs import has_login  # slow, and only a run asks for it

    wandb = spec.tracking.wandb if spec.tracking else None
    if wandb and wandb.mode == "online" and not has_login():
        message = (
            "has no login: set WANDB_API_KEY where the job is run, or write mode: offline and send"
            " the files later with `wandb sync`"
        )
        yield Violation(("tracking", "wandb"), message)
    uri = spec.tracking.mlflow.uri if spec.tracking and spec.tracking.mlflow else ""
    if not uri.startswith(("http://", "https://")):
        return
    import httpx  # takes a tenth of a second, and other jobs do not need it

    try:
        # only reachability matters here; MLflow checks the certificate itself
        httpx.get(uri, timeout=TIMEOUT_S, verify=False)
    except httpx.ReadTimeout:
        return  # the server accepted the connection and is slow
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
    """Check that the base model exists with a tokenizer; on the hub, that it has a config.json."""
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
        where = "has no config.json" if names else "is not on the hub, or you have no access"
        message = f"{place} {where}; name a model of transformers, or a folder such as ./{place}"
        yield Violation(("model", "base"), message)


def _files_on_hub(name: str, kind: Literal["model", "dataset"]) -> set[str] | None:
    """Returns the files of a hub repository.

    Returns an empty set if it does not exist, and None if the hub does not answer.
    """
    import huggingface_hub  # takes half a second, which local models need not wait for
    import huggingface_hub.errors

    try:
        repository = huggingface_hub.HfApi().repo_info(name, repo_type=kind, timeout=TIMEOUT_S)
    except huggingface_hub.errors.RepositoryNotFoundError:
        return set()
    except Exception:  # noqa: BLE001 - an unreachable hub raises many types
        return None
    return {file.rfilename for file in repository.siblings or ()}


def _rows(spec: JobSpec) -> Iterator[Violation]:
    """Check columns, texts and labels of the splits, unless both are in files of this machine.

    The rows of data sets on the hub are not read, only their existence is checked.
    """
    for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        if (
            not source.is_local
            and not source.is_file
            and _files_on_hub(source.shown, "dataset") == set()
        ):
            message = f"{source.shown} is not on the hub, or you have no access"
            yield Violation(("data", split, "path"), message)
    if not all(source.is_local and source.is_file for source in (spec.data.train, spec.data.eval)):
        yield from rows.violations(spec, _read)


def _read(source: SourceSpec) -> "Table | None":
    """Read the rows of a split; returns None if they are too many or on the hub.

    Raises:
        DataError: if the rows cannot be read.
        StorageError: if S3 does not answer but may later.
    """
    if source.is_local and source.is_file:
        return rows.read_here(source)
    if not source.is_local and not source.is_file:
        return None
    from jobs.training.data import sources  # takes seconds, which local files need not wait for

    try:
        is_large = sum(map(_size, source.paths)) > rows.LARGEST_FILES
        return None if is_large else sources.read(source)
    except StorageError as error:
        if error.is_passing:
            raise
        raise DataError(str(error)) from None


def _harness(spec: JobSpec) -> Iterator[Violation]:
    """Check that lm_eval knows the tasks, and that they have the metrics that the job names."""
    wanted, path = spec.train.eval.harness, ("train", "eval", "harness")
    if wanted is None or importlib.util.find_spec(harness.PACKAGE) is None:
        return
    try:
        found = harness.describe(wanted)
    except TrainingError as error:
        yield Violation(path, f"its tasks cannot be looked up: {error}")
        return
    for name, task in found.items():
        if not task.is_known:
            meant = f"; did you mean {' or '.join(task.meant)}?" if task.meant else ""
            where = "; `lm_eval ls tasks` lists its own, and include_path names a folder of others"
            yield Violation(path, f"lm_eval has no task {shown(name)}{meant or where}")
        elif task.is_unsafe:
            message = f"{name} executes code that the model writes, which is not allowed; remove it"
            yield Violation(path, message)
    known = {valid_name(name): task.metrics for name, task in found.items()}
    for place, name in metric_rules.harness_metrics(spec):
        metrics = known[name.partition(MARK)[0]]
        if metrics is not None and name not in metrics:
            those = f"it measures {listed(metrics)}" if metrics else "name its members instead"
            yield Violation(place, f"the harness measures no {name}; {those}")


def _size(path: str) -> int:
    """Returns the bytes of an object in S3 or of local files.

    Raises:
        StorageError: if S3 does not answer.
    """
    if not path.startswith(S3_SCHEME):
        return sum(map(files.size_of, files.matching(path)))
    place, _, key = path.removeprefix(S3_SCHEME).partition("/")
    return BucketObjects(f"{S3_SCHEME}{place}").size(key)
