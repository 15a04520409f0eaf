"""Checkpoints: written beside their place in the background, hashed, renamed, sent on, tidied."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
from pydantic import ByteSize

from jobs.errors import CheckpointError
from jobs.spec import task_registry
from jobs.spec.task import Metric
from jobs.spec.train import CheckpointSpec
from jobs.storage import files, manifest
from jobs.storage.local import LocalObjects
from jobs.storage.objects import Objects
from jobs.storage.storage import open_storage
from jobs.training import state
from jobs.training.config import TrainingConfig
from jobs.training.events import CheckpointRef, Saved
from jobs.training.session import Session


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """Where the checkpoints of a run are."""

    folder: Path
    """On the machine of whoever looks."""
    url: str = ""
    """The bucket that they are sent to; empty where the folder is all there is."""

    @property
    def bucket(self) -> Objects | None:
        """None where the folder is all there is."""
        return open_storage(self.url).objects if self.url else None


class Checkpoints:
    """A shelf that one thread of the main worker fills, one checkpoint after another."""

    def __init__(self, session: Session, shelf: CheckpointStore) -> None:
        self._session = session
        self._shelf = shelf
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[CheckpointRef] | None = None

    def save(
        self, step: int, metrics: dict[str, float], scores: list[list[float]] | None = None
    ) -> list[Saved]:
        """Copy the state after `step` steps and write it in the background; all workers call this.

        `scores` are those of the evaluation rows that are kept beside the last one's model. Waits
        for the write before it, and returns what that finished.
        """
        finished = self.finish()
        place = str(self._shelf.folder / f"step-{step:08d}")
        snapshot = state.take(self._session, CheckpointRef(place, step, metrics), scores)
        if self._session.world.is_main:
            self._pending = self._writer.submit(_write, snapshot, self._session, self._shelf)
        return finished

    def finish(self) -> list[Saved]:
        """Wait for the write that is under way; raises StorageError when it failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        try:
            reference = pending.result()
        except (OSError, safetensors.SafetensorError) as error:
            raise files.failed(self._shelf.folder, "written", files.first_of(error)) from None
        return [Saved(reference.step, reference.path)]


def latest(
    shelf: CheckpointStore, tell: Callable[[str], None] = lambda _: None
) -> CheckpointRef | None:
    """The newest checkpoint that is whole, on this machine then.

    `tell` hears which torn or altered ones were passed over.
    """
    bucket = shelf.bucket
    here = {path.name for path in shelf.folder.glob("step-*")}
    there = set(bucket.children("")) if bucket else set()
    for name in sorted(here | there, reverse=True):
        for objects in (LocalObjects(shelf.folder) if name in here else None, bucket):
            try:
                path = objects.get_folder(name) if objects else None
            except CheckpointError as error:
                tell(f"checkpoint passed over: {error}")
                continue
            if path:
                details = manifest.read(path)
                return CheckpointRef(str(path), details["step"], details["metrics"])
    return None


def at_hand(reference: CheckpointRef, shelf: CheckpointStore) -> CheckpointRef:
    """The same checkpoint on this machine, where another one found it."""
    if Path(reference.path).is_dir() or shelf.bucket is None:
        return reference
    path = shelf.bucket.get_folder(Path(reference.path).name)
    return dataclasses.replace(reference, path=str(path))


def _write(snapshot: state.Snapshot, session: Session, shelf: CheckpointStore) -> CheckpointRef:
    final = Path(snapshot.reference.path)
    for left in final.parent.glob(f"{files.PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = files.partial_of(final)
    partial.mkdir(parents=True)
    state.write(snapshot, session, partial)
    manifest.write(partial, asdict(snapshot.reference))
    spec = session.config.checkpoint
    _check_size(partial, spec.max_size)
    here, bucket = LocalObjects(final.parent), shelf.bucket
    here.put_folder(final.name, partial)
    if bucket:  # after it is whole here, which it stays should the bucket not answer
        bucket.put_folder(final.name, final)
    for objects in filter(None, (here, bucket)):
        _tidy(objects, spec, judged_by(session.config))
    return snapshot.reference


def _check_size(partial: Path, most: ByteSize | None) -> None:
    size = ByteSize(files.size_of(partial))
    if most is not None and size > most:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"a checkpoint takes {size.human_readable()}, and train.checkpoint.max_size is"
            f" {most.human_readable()}; give checkpoints more room"
        )


def judged_by(config: TrainingConfig) -> Metric:
    """The metric that tells the best checkpoint."""
    found = task_registry.find(config.model.task).metric(config.metrics[0])
    assert found  # a rule sees to it that jobs name metrics of their task
    return found


def _tidy(objects: Objects, spec: CheckpointSpec, metric: Metric) -> None:
    names = sorted(objects.children(""), reverse=True)
    if len(names) > spec.keep or spec.max_size is not None:
        scores = {name: _score(objects, name, metric.name) for name in names}
        best = _best(scores, is_lower_better=metric.goal == "min")
        kept = [name for name in names if name in {*names[: spec.keep], best}]
        if spec.max_size is not None:
            sizes = {name: sum(e.size for e in objects.entries(name)) for name in kept}
            kept = _fitting(kept, sizes, spec.max_size, best)
        for name in set(names) - set(kept):
            objects.delete_folder(name)


def _best(scores: Mapping[str, float | None], *, is_lower_better: bool) -> str | None:
    judged = {name: score for name, score in scores.items() if score is not None}
    choose = min if is_lower_better else max
    return choose(judged, key=lambda name: judged[name], default=None)


def _fitting(
    names: Sequence[str], sizes: Mapping[str, int], most: int, best: str | None
) -> list[str]:
    """The newest, which comes first, then the best, then as many more as there is room for."""
    kept, room = list[str](), most
    for name in sorted(names, key=lambda name: (name != names[0], name != best)):
        room -= sizes[name]
        if kept and room < 0:
            break
        kept.append(name)
    return kept


def _score(objects: Objects, name: str, metric: str) -> float | None:
    found = objects.read(f"{name}/{manifest.MANIFEST}")
    try:
        return float(manifest.parse(found.content, name)["metrics"][metric]) if found else None
    except (CheckpointError, ValueError, KeyError, TypeError):
        return None
