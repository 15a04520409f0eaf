"""Saves checkpoints in the background: writes, hashes, renames, uploads, deletes old ones."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import safetensors
from pydantic import ByteSize

from jobs.errors import CheckpointError
from jobs.spec import task_registry
from jobs.spec.task import LOSS, Metric
from jobs.spec.train import CheckpointSpec
from jobs.storage import files, manifest
from jobs.storage.local import LocalObjects
from jobs.storage.objects import Objects
from jobs.storage.storage import S3_SCHEME, open_storage
from jobs.training import state
from jobs.training.config import TrainingConfig
from jobs.training.events import CheckpointRef, Saved
from jobs.training.model import location
from jobs.training.quality import QualityReport
from jobs.training.session import Session
from jobs.training.world import World


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """The folder and the bucket of a run's checkpoints."""

    folder: Path
    """On this machine; other machines may have other checkpoints there."""
    url: str = ""
    """URL of the bucket to which checkpoints are uploaded; empty without a bucket."""

    @property
    def bucket(self) -> Objects | None:
        """The bucket; None without one."""
        return open_storage(self.url).objects if self.url else None


class CheckpointSaver:
    """Saves checkpoints into a store, one after another, in a thread of the main worker."""

    def __init__(self, session: Session, store: CheckpointStore) -> None:
        self._session = session
        self.store = store
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[CheckpointRef] | None = None

    def save(
        self,
        step: int,
        metrics: dict[str, float],
        scores: list[Any] | None = None,
        quality: QualityReport | None = None,
        scalars: Mapping[str, float] | None = None,
    ) -> list[Saved]:
        """Copies the state after `step` steps and writes it in the background.

        All workers must call this. It first waits for the checkpoint before, and returns it if it
        is now saved. `scores` are the scores of the sampled evaluation rows, which are saved with
        the last checkpoint's model; None for other checkpoints. `quality` is the report of the
        last evaluation, which is saved beside them. `scalars` are kept as they are.

        Raises:
            StorageError: if the checkpoint before could not be written.
            CheckpointError: if the checkpoint before exceeds `train.checkpoint.max_size`.
        """
        finished = self.finish()
        place = str(self.store.folder / _name(step))
        reference = CheckpointRef(place, step, metrics, self._session.base_weights)
        snapshot = state.take(self._session, reference, scores, quality, scalars or {})
        if self._session.world.is_main:
            self._pending = self._writer.submit(_write, snapshot, self._session, self.store)
        return finished

    def finish(self) -> list[Saved]:
        """Waits for the checkpoint that is being written, and returns it; empty if there is none.

        Raises:
            StorageError: if it could not be written.
            CheckpointError: if it exceeds `train.checkpoint.max_size`.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        try:
            reference = pending.result()
        except (OSError, safetensors.SafetensorError) as error:
            raise files.failed(self.store.folder, "written", files.first_of(error)) from None
        return [Saved(reference.step, reference.path)]


def latest(
    store: CheckpointStore, on_skipped: Callable[[str], None] = lambda _: None
) -> CheckpointRef | None:
    """Returns the newest complete checkpoint, after downloading it if it is only in the bucket.

    `on_skipped` is called with a message for each newer checkpoint that is incomplete or altered.
    None if there is no complete checkpoint.
    """
    bucket = store.bucket
    here = {path.name for path in store.folder.glob("step-*")}
    there = set(bucket.children("")) if bucket else set()
    for name in sorted(here | there, reverse=True):
        for objects in (LocalObjects(store.folder) if name in here else None, bucket):
            try:
                path = objects.get_folder(name) if objects else None
            except CheckpointError as error:
                on_skipped(f"checkpoint skipped: {error}")
                continue
            if path:
                return _read(path)
    return None


def of_step(store: CheckpointStore, step: int) -> CheckpointRef | None:
    """Returns the complete checkpoint of a step; None if there is none."""
    name, bucket = _name(step), store.bucket
    for objects in (LocalObjects(store.folder), bucket):
        try:
            path = objects.get_folder(name) if objects else None
        except CheckpointError:
            continue
        if path:
            return _read(path)
    return None


def base_revision(
    config: TrainingConfig, store: CheckpointStore | None, world: World
) -> str | None:
    """Returns the commit of the base on the hub that a run's adapter was trained on so far.

    It is None for a first attempt, for other bases, and if changes of the base are accepted. All
    workers must call this.
    """
    base = config.model.base
    if store is None or config.model.adapter is None or config.accepts_changes:
        return None
    if base.startswith(S3_SCHEME) or isinstance(location.locate(base), Path):
        return None
    settings = _adapter_settings(store) if world.is_main else {}
    is_same = settings.get("base_model_name_or_path") == base
    revision = settings.get("revision") if is_same else None
    return cast("str | None", world.gather(revision)[0])


def _adapter_settings(store: CheckpointStore) -> dict[str, Any]:
    """Returns peft's settings in the newest checkpoint that has some; empty without one."""
    for objects in filter(None, (LocalObjects(store.folder), store.bucket)):
        for name in sorted(objects.children(""), reverse=True):
            for folder in (state.ADAPTER_DIR, manifest.MODEL_DIR):  # the first beside a merged one
                found = objects.read(f"{name}/{folder}/{location.ADAPTER_CONFIG}")
                with contextlib.suppress(ValueError):
                    if found:
                        return dict(json.loads(found.content))
    return {}


def _read(folder: Path) -> CheckpointRef:
    details = manifest.read(folder)
    weights = details.get("base_weights", "")  # checkpoints of older releases have none
    return CheckpointRef(str(folder), details["step"], details["metrics"], weights)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def download(reference: CheckpointRef, store: CheckpointStore) -> CheckpointRef:
    """Returns a checkpoint that is on this machine; downloads it if only another machine has it."""
    if Path(reference.path).is_dir() or store.bucket is None:
        return reference
    path = store.bucket.get_folder(Path(reference.path).name)
    return dataclasses.replace(reference, path=str(path))


def _write(snapshot: state.Snapshot, session: Session, store: CheckpointStore) -> CheckpointRef:
    final = Path(snapshot.reference.path)
    for left in final.parent.glob(f"{files.PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = files.partial_of(final)
    partial.mkdir(parents=True)
    state.write(snapshot, session, partial)
    manifest.write(partial, asdict(snapshot.reference))
    spec = session.config.checkpoint
    _check_size(partial, spec.max_size)
    here, bucket = LocalObjects(final.parent), store.bucket
    here.put_folder(final.name, partial)
    if bucket:  # uploaded last: if the bucket fails, the checkpoint is complete on this machine
        bucket.put_folder(final.name, final)
    for objects in filter(None, (here, bucket)):
        _delete_old(objects, spec, selection_metric(session.config))
    return snapshot.reference


def _check_size(partial: Path, most: ByteSize | None) -> None:
    size = ByteSize(files.size_of(partial))
    if most is not None and size > most:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"a checkpoint takes {size.human_readable()}, and train.checkpoint.max_size is"
            f" {most.human_readable()}; set a larger size"
        )


def selection_metric(config: TrainingConfig) -> Metric:
    """Returns the metric that selects the best checkpoint: early stopping's, else the first one."""
    stopping = config.early_stopping
    name = (stopping.metric if stopping else None) or config.metrics[0]
    if name == LOSS.name:
        return LOSS
    found = task_registry.find(config.model.task).metric(name)
    assert found  # a rule of job files ensures that the task has the job's metrics
    return found


def _delete_old(objects: Objects, spec: CheckpointSpec, metric: Metric) -> None:
    """Deletes all checkpoints but the newest `keep` and the best, within `max_size`."""
    names = sorted(objects.children(""), reverse=True)
    if len(names) > spec.keep or spec.max_size is not None:
        scores = {name: _score(objects, name, metric.name) for name in names}
        best = _best(scores, is_lower_better=metric.goal == "min")
        kept = [name for name in names if name in {*names[: spec.keep], best}]
        if spec.max_size is not None:
            sizes = {name: sum(e.size for e in objects.entries(name)) for name in kept}
            kept = _within_size(kept, sizes, spec.max_size, best)
        for name in set(names) - set(kept):
            objects.delete_folder(name)


def _best(scores: Mapping[str, float | None], *, is_lower_better: bool) -> str | None:
    # the earliest of equal ones, as early stopping counts
    evaluated = {name: score for name, score in sorted(scores.items()) if score is not None}
    choose = min if is_lower_better else max
    return choose(evaluated, key=lambda name: evaluated[name], default=None)


def _within_size(
    names: Sequence[str], sizes: Mapping[str, int], most: int, best: str | None
) -> list[str]:
    """Returns the checkpoints to keep within `most` bytes.

    `names` is sorted from the newest, which is always kept; the best has the next priority.
    """
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
