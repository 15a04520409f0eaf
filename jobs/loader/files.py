"""A rule that reads the disk: a job's data files and base exist, and the base can do the task."""

import json
from collections.abc import Iterator
from pathlib import Path

from jobs.errors import ModelError, listed, shown
from jobs.spec import JobSpec
from jobs.spec.data import SourceSpec, format_of
from jobs.spec.paths import has_variable
from jobs.spec.rules import Rule, Violation
from jobs.storage import files
from jobs.storage.storage import S3_SCHEME
from jobs.training.model import abilities
from jobs.training.model import location as model_location


def files_exist(folder: Path) -> Rule:
    """Returns a rule that checks data files, tasks of the harness, and the base.

    Paths are relative to `folder`, the folder of the job file.
    """

    def check(spec: JobSpec) -> Iterator[Violation]:
        for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
            for where, path in source.placed_paths:
                if not has_variable(path) and (message := _why_not_data(path, source, folder)):
                    yield Violation(("data", split, *where), f"{path} {message}")
        harness = spec.train.eval.harness
        place = harness.include_path if harness else None
        if place and not has_variable(place) and not (folder / files.expanded(place)).is_dir():
            message = f"{place} is no folder; paths are relative to {folder.resolve()}"
            yield Violation(("train", "eval", "harness", "include_path"), message)
        yield from _base_suits(spec, folder)

    return check


def _base_suits(spec: JobSpec, folder: Path) -> Iterator[Violation]:
    """Checks that the base exists and can do the task; one of the hub only if it is in its cache.

    Models in S3 are checked when they are used, and another rule refuses variables.
    """
    base = spec.model.base
    if base.startswith(S3_SCHEME) or has_variable(base):
        return
    try:
        place = model_location.locate(model_location.seen_from(folder, base))
        configured = abilities.folder_of(place)
        if configured is not None:
            abilities.check(base, configured, spec.task)
        if isinstance(place, Path):
            model_location.check(place, base)
    except ModelError as error:
        yield Violation(("model", "base"), str(error))


def _why_not_data(path: str, source: SourceSpec, folder: Path) -> str:
    """Returns why a local path cannot be read; empty if it can, or if the path is not local."""
    if not source.is_local and not files.is_here(path, folder):
        return ""
    found = files.matching(path, folder)
    if not found:
        return f"does not exist; paths are relative to {folder.resolve()}"
    return "" if format_of(path) else _why_not_saved(found[0], source.split)


def _why_not_saved(place: Path, split: str) -> str:
    """Returns why `datasets` cannot read a split of a saved folder; empty if it can."""
    if (place / "state.json").is_file():
        return ""
    try:
        known = json.loads((place / "dataset_dict.json").read_bytes())["splits"]
    except (OSError, ValueError, TypeError, KeyError):
        return "is not a folder that the datasets library wrote by save_to_disk"
    return "" if split in known else f"has no split {shown(split)}; it has {listed(known)}"
