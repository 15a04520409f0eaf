"""A job file with errors as a job without them, so that rules across fields can be checked too."""

import copy
from typing import Any

from pydantic import ValidationError

from jobs.loader import explain, source
from jobs.loader.overrides import put
from jobs.loader.source import Document, Path
from jobs.spec.job import JobSpec

STAND_INS: dict[str, object] = {
    "version": 1,
    "name": "stand-in",
    "model": {},
    "model.base": "s3://stand-in/model",
    "data": {},
    "data.train": {},
    "data.train.path": "s3://stand-in/train.csv",
    "data.eval": {},
    "data.eval.path": "s3://stand-in/eval.csv",
    "sweep.search_space": {"train.optimizer.lr": [3e-5]},
    "serve.route": "/stand-in",
}
"""Values of required fields that are missing or faulty. Nothing looks for those in a bucket."""


class _Gone:
    """Stands in a list for an item that was left out, so that no index moves."""


GONE = _Gone()


class Draft:
    """The values of a job file, of which those with errors are left out one by one."""

    def __init__(self, document: Document) -> None:
        self._values: Any = copy.deepcopy(document.values)
        self._faulty: list[Path] = []
        """Places in the job file of what was left out or stood in for."""

    def spec(self) -> JobSpec | None:
        """The job of what can be used; None where nothing can be made of it."""
        for _ in range(source.MAX_DEPTH):
            kept = _without_gone(self._values)
            try:
                return JobSpec.model_validate(kept)
            except ValidationError as error:
                errors, document = error.errors(), Document("", kept)
                paths = [self.written(explain.written_path(e, document)) for e in errors]
                # after all paths are known, because mending one moves those that follow
                for path, details in zip(paths, errors, strict=True):
                    self._mend(path, is_missing=details["type"] == "missing")
        return None

    def written(self, path: Path) -> Path:
        """The path in the job file of a value of the job."""
        value, found = self._values, []
        for part in path:
            if isinstance(value, list) and isinstance(part, int):
                kept = [index for index, item in enumerate(value) if item is not GONE]
                part = kept[part] if part < len(kept) else part
            found.append(part)
            value = _inside(value, part)
        return tuple(found)

    def is_in_doubt(self, path: Path) -> bool:
        """Whether a rule on `path` of the job file may be broken only by what was left out.

        That is something at the same place, above it, or directly below it.
        """
        return any(
            path[: len(faulty)] == faulty or path in (faulty[:-1], _without_index(faulty)[:-1])
            for faulty in self._faulty
        )

    def _mend(self, path: Path, *, is_missing: bool) -> None:
        """Put a stand-in where a required field is missing, else take the value out."""
        if path:
            self._faulty.append(path)
        name = ".".join(str(part) for part in path)
        if not is_missing:
            self._take_out(path)
        elif name in STAND_INS:
            put(self._values, name, copy.deepcopy(STAND_INS[name]))
        else:
            self._take_out(path[:-1])

    def _take_out(self, path: Path) -> None:
        if not path:
            return
        self._faulty.append(path)
        parent: Any = self._values
        for part in path[:-1]:
            parent = _inside(parent, part)
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        elif isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent):
            parent[path[-1]] = GONE


def _without_index(path: Path) -> Path:
    """The list that an item is in; any other path as it is."""
    return path[:-1] if isinstance(path[-1], int) else path


def _inside(value: Any, part: str | int) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return None


def _without_gone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_gone(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_gone(item) for item in value if item is not GONE]
    return value
