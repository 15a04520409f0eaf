"""Makes a valid job of a job file with errors, so that rules across fields are checked as well."""

import copy
from typing import Any

from pydantic import ValidationError

from jobs.loader import explain, source
from jobs.loader.overrides import put
from jobs.loader.source import Document, Path
from jobs.loader.validation import named_task, validate
from jobs.spec.job import JobSpec

PLACEHOLDERS: dict[str, object] = {
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
"""Placeholders for required fields that are missing or invalid.

Their files are in a bucket, because no rule looks for files there.
"""


class _Removed:
    """Marks an item that was removed from a list, so that the indices of later items stay."""


REMOVED = _Removed()


class Draft:
    """The values of a job file, from which invalid ones are removed until the rest is a job."""

    def __init__(self, document: Document) -> None:
        self._values: Any = copy.deepcopy(document.values)
        self._lacks_task = named_task(document.values) is None
        self._repaired: list[Path] = []
        """Paths in the job file of values that were removed or replaced by a placeholder."""

    def spec(self) -> JobSpec | None:
        """Returns the job that the valid values make; None if they make none."""
        for _ in range(source.MAX_DEPTH):
            kept = _without_removed(self._values)
            try:
                return validate(kept)
            except ValidationError as error:
                errors, document = error.errors(), Document("", kept)
                paths = [self.written(explain.written_path(e, document)) for e in errors]
                # only after all paths are known, because a removal moves the later ones
                for path, details in zip(paths, errors, strict=True):
                    self._repair(path, is_missing=details["type"] == "missing")
        return None

    def written(self, path: Path) -> Path:
        """Returns the path in the job file of a value of the job.

        List indices differ where items were removed.
        """
        value, found = self._values, []
        for part in path:
            if isinstance(value, list) and isinstance(part, int):
                kept = [index for index, item in enumerate(value) if item is not REMOVED]
                part = kept[part] if part < len(kept) else part
            found.append(part)
            value = _inside(value, part)
        return tuple(found)

    def may_follow_from_repair(self, path: Path) -> bool:
        """Returns whether the violation of a rule at `path` may result from a removed value.

        That is the case if a value was removed at the same path, above it or directly below it, or
        if the task is unknown, and the rule is about what it decides.
        """
        if self._lacks_task and (path == ("data",) or explain.follows_from_task(path)):
            return True
        return any(
            path[: len(repaired)] == repaired
            or path in (repaired[:-1], _without_index(repaired)[:-1])
            for repaired in self._repaired
        )

    def _repair(self, path: Path, *, is_missing: bool) -> None:
        """Adds a placeholder for a missing required field; removes any other invalid value."""
        if path:
            self._repaired.append(path)
        name = ".".join(str(part) for part in path)
        if not is_missing:
            self._remove(path)
        elif name in PLACEHOLDERS:
            put(self._values, name, copy.deepcopy(PLACEHOLDERS[name]))
        else:
            self._remove(path[:-1])

    def _remove(self, path: Path) -> None:
        if not path:
            return
        self._repaired.append(path)
        parent: Any = self._values
        for part in path[:-1]:
            parent = _inside(parent, part)
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        elif isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent):
            parent[path[-1]] = REMOVED


def _without_index(path: Path) -> Path:
    """Returns the path of the list that holds an item; any other path unchanged."""
    return path[:-1] if isinstance(path[-1], int) else path


def _inside(value: Any, part: str | int) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return None


def _without_removed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_removed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_removed(item) for item in value if item is not REMOVED]
    return value
