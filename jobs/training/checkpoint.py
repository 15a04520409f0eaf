"""Checkpoints on disk: written beside their place in the background, hashed, renamed, tidied."""

import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.errors import CheckpointError
from jobs.spec.train import LOWER_IS_BETTER
from jobs.training import manifest, state
from jobs.training.events import CheckpointRef, Saved
from jobs.training.session import Session


class Checkpoints:
    """A folder of checkpoints that one thread of the main worker writes, one after another."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[CheckpointRef] | None = None

    def save(self, step: int, metrics: dict[str, float]) -> list[Saved]:
        """Copy the state after `step` steps and write it in the background; all workers call this.

        Waits for the write before it, and returns what that finished.
        """
        finished = self.finish()
        place = str(self._folder / f"step-{step:08d}")
        snapshot = state.take(self._session, CheckpointRef(place, step, metrics))
        if self._session.world.is_main:
            self._pending = self._writer.submit(_write, snapshot, self._session)
        return finished

    def finish(self) -> list[Saved]:
        """Wait for the write that is under way; raises CheckpointError when it failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        try:
            reference = pending.result()
        except OSError as error:
            raise CheckpointError(
                f"a checkpoint in {self._folder} cannot be written: {error.strerror or error};"
                " free space there, then run again with --resume"
            ) from None
        return [Saved(reference.step, reference.path)]


def latest(folder: Path) -> CheckpointRef | None:
    """The newest checkpoint that is whole; torn or altered ones are passed over."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            details = manifest.verify(path)
        except CheckpointError:
            continue
        return CheckpointRef(str(path), details["step"], details["metrics"])
    return None


def _write(snapshot: state.Snapshot, session: Session) -> CheckpointRef:
    final = Path(snapshot.reference.path)
    partial = final.with_name(f".partial-{final.name}")
    for left in final.parent.glob(".partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir(parents=True)
    state.write(snapshot, session, partial)
    manifest.write(partial, asdict(snapshot.reference))
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _tidy(final.parent, session.config.checkpoint.keep, session.config.metrics[0])
    return snapshot.reference


def _tidy(folder: Path, keep: int, metric: str) -> None:
    """Keep the newest ones, and the best of those that were judged."""
    paths = sorted(folder.glob("step-*"), reverse=True)
    scores = {path: _score(path, metric) for path in paths}
    judged = [path for path in paths if scores[path] is not None]
    sign = -1 if metric in LOWER_IS_BETTER else 1
    best = max(judged, key=lambda path: sign * (scores[path] or 0.0), default=None)
    for path in paths[keep:]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)


def _score(path: Path, metric: str) -> float | None:
    try:
        details: dict[str, Any] = json.loads((path / manifest.MANIFEST).read_text(encoding="utf-8"))
        return float(details["metrics"][metric])
    except (OSError, ValueError, KeyError):
        return None
