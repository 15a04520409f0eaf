"""Disks that fill up and files that change: said in words, with what was good still there."""

import itertools
import shutil
from pathlib import Path

import pytest

from jobs.errors import CheckpointError, StorageError
from jobs.spec.quantities import Cadence
from jobs.spec.train import CheckpointSpec
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from jobs.training import checkpoint
from jobs.training.checkpoint import CheckpointStore
from jobs.training.config import TrainingConfig
from jobs.training.events import CheckpointSkipped, Event, Started
from jobs.training.loop import train
from orchestrator.records import journal, registry
from tests.builders import job, small_disk, training_config

WEIGHTS = f"{manifest.MODEL_DIR}/model.safetensors"


@pytest.fixture
def config(reviews: Path, tiny_model: str) -> TrainingConfig:
    """A few steps, with a checkpoint of about 12 MB after every fourth."""
    every = CheckpointSpec(every=Cadence(4, "step"), keep=3)
    return training_config(reviews, tiny_model, checkpoint=every)


def test_a_disk_that_fills_during_a_checkpoint_keeps_the_one_before(
    config: TrainingConfig, tmp_path: Path
) -> None:
    whole = train(config, lambda _: None, tmp_path / "whole")
    with small_disk(tmp_path / "disk", "20m") as resize:
        shelf = CheckpointStore(tmp_path / "disk" / "checkpoints")
        with pytest.raises(StorageError, match=r"No space left on device; free space") as caught:
            train(config, lambda _: None, shelf)
        assert caught.value.is_full
        left = checkpoint.latest(shelf)
        assert left is not None
        assert left.step == 4
        resize("64m")
        events: list[Event] = []
        resumed = train(config, events.append, shelf)
        assert next(e.first_step for e in events if isinstance(e, Started)) == 4
        assert not list(shelf.folder.glob(".partial*"))
        same = [manifest.sha256(Path(found.path) / WEIGHTS) for found in (whole, resumed)]
        assert same[0] == same[1]


def test_a_disk_that_fills_during_publishing_leaves_what_is_published(
    config: TrainingConfig, tmp_path: Path
) -> None:
    reference = train(config, lambda _: None, tmp_path / "checkpoints")
    with small_disk(tmp_path / "disk", "6m") as resize:
        storage = open_storage(tmp_path / "disk")
        old = registry.publish(job(), reference, ("a", "b"), run_id="one", storage=storage)
        with pytest.raises(StorageError, match="No space left on device"):
            registry.publish(job(), reference, ("a", "b"), run_id="two", storage=storage)
        assert registry.read(storage, old.name) == old
        assert len(registry.every(storage)) == 1
        resize("16m")
        new = registry.publish(job(), reference, ("a", "b"), run_id="two", storage=storage)
        assert registry.read(storage, old.name) == new
        assert [path.name for path in (storage.folder / "models/reviews").glob(".*")] == []


def test_a_disk_that_fills_under_a_journal_keeps_every_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k"):
        objects = open_storage(tmp_path / "disk").objects
        lines = itertools.count()

        def fill() -> None:
            for _ in lines:
                journal.append(objects, "journal.jsonl", b'"%s"' % (b"x" * 777))

        with pytest.raises(StorageError, match="No space left on device"):
            fill()
        found = journal.read(objects, "journal.jsonl")
        assert (len(found.values), found.damaged) == (next(lines) - 1, ())
        path = tmp_path / "disk" / "journal.jsonl"
        path.write_bytes(path.read_bytes()[-3000:])  # room again, and a torn end as it was
        journal.append(objects, "journal.jsonl", b'"after"')
        assert journal.read(objects, "journal.jsonl").values[-1] == b'"after"'


def test_a_flipped_bit_in_any_file_of_a_checkpoint_is_named_and_the_one_before_taken(
    config: TrainingConfig, tmp_path: Path
) -> None:
    train(config, lambda _: None, tmp_path / "whole")
    *_, before, newest = sorted((tmp_path / "whole").iterdir())
    files = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(files) >= 8
    for name in files:
        flip(newest / name)
        told: list[str] = []
        found = checkpoint.latest(CheckpointStore(tmp_path / "whole"), told.append)
        flip(newest / name)
        assert found is not None
        assert (found.path, len(told)) == (str(before), 1)
        assert str(newest / name) in told[0] or name.name == manifest.MANIFEST in told[0]
    flip(newest / WEIGHTS)
    events: list[Event] = []
    train(config, events.append, tmp_path / "whole")
    last = int(before.name.removeprefix("step-"))
    assert [e.first_step for e in events if isinstance(e, Started)] == [last]
    assert [WEIGHTS in e.message for e in events if isinstance(e, CheckpointSkipped)] == [True]


def test_a_flipped_bit_in_any_file_of_a_version_refuses_it(
    config: TrainingConfig, tmp_path: Path
) -> None:
    reference = train(config, lambda _: None, tmp_path / "checkpoints")
    storage = open_storage(tmp_path / "storage")
    version = registry.publish(job(), reference, ("a", "b"), run_id="one", storage=storage)
    place = Path(version.path)
    names = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
    assert len(names) >= 6
    for name in names:
        flip(place / name)
        with pytest.raises(CheckpointError, match=name.name):
            registry.read(storage, version.name)
        flip(place / name)
    assert registry.read(storage, version.name) == version
    shutil.rmtree(place)


def flip(path: Path) -> None:
    """Change a bit in the middle of a file, or change it back."""
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 16
        path.write_bytes(content)
