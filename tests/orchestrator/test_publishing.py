"""What is done for publishing while a saved model is proven."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.errors import CheckpointError
from jobs.storage import files, manifest
from jobs.storage.storage import Storage, open_storage
from jobs.training.events import CheckpointRef, Event, Interrupted, Metered, Saved, Started
from jobs.training.loop import train
from orchestrator.context import Context
from orchestrator.publishing import Ahead, publish_stage
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from serve.version import ModelVersion
from tests.builders import job, training_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Trained = tuple[CheckpointRef, list[Event]]


@pytest.fixture(scope="module")
def trained(reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A checkpoint, and the events of its training."""
    events, folder = list[Event](), tmp_path_factory.mktemp("trained")
    return train(training_config(reviews, tiny_model), events.append, folder), events


@pytest.fixture
def checkpoint(trained: Trained, tmp_path: Path) -> Path:
    """A copy of it that may be spoilt."""
    return Path(shutil.copytree(trained[0].path, tmp_path / "checkpoint"))


def published(context: Context, ahead: Ahead, trained: Trained, checkpoint: Path) -> ModelVersion:
    """The version that is published once the model is proven."""
    reference = replace(trained[0], path=str(checkpoint))
    fit = FitResult(reference, ("a", "b"), 5, 1.0, 0, (), ())
    return publish_stage(context.run, context.spec, fit, context.notify, ahead.copy_of)


def copies(storage: Storage) -> list[Path]:
    """Copies that have not become a version."""
    return list(storage.folder.glob(f"models/*/{files.PARTIAL}*"))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A run without an endpoint."""
    storage = open_storage(tmp_path / "storage")
    return Context(job(), Run("r", storage), storage, lambda _: None, 0)


def test_the_last_checkpoint_is_copied_once_it_is_saved(
    context: Context, trained: Trained, checkpoint: Path
) -> None:
    """What is published is the copy: the checkpoint's own model is gone by then."""
    with Ahead(context) as ahead:
        for event in trained[1]:
            if isinstance(event, Metered | Saved):
                ahead.take(
                    replace(event, path=str(checkpoint)) if isinstance(event, Saved) else event
                )
        assert ahead._copy
        ahead._copy[1].result()
        model = checkpoint / manifest.MODEL_DIR
        expected = {path.name: path.read_bytes() for path in model.iterdir()}
        shutil.rmtree(model)
        version = published(context, ahead, trained, checkpoint)
    found = {path.name: path.read_bytes() for path in Path(version.path).iterdir()}
    assert expected.items() <= found.items()
    assert found.keys() - expected.keys() == {"README.md", manifest.MANIFEST}
    assert copies(context.storage) == []


def test_a_checkpoint_that_is_not_the_last_is_not_copied(
    context: Context, trained: Trained, checkpoint: Path
) -> None:
    with Ahead(context) as ahead:
        ahead.take(Saved(3, str(checkpoint)))
        assert ahead.copy_of(checkpoint) is None


def test_what_an_attempt_saves_as_it_leaves_is_not_copied(
    context: Context, trained: Trained, checkpoint: Path
) -> None:
    """It tells its speed too; the next attempt's earlier checkpoints are not the last ones."""
    (metered,) = (event for event in trained[1] if isinstance(event, Metered))
    (started,) = (event for event in trained[1] if isinstance(event, Started))
    saved = Saved(3, str(checkpoint))
    with Ahead(context) as ahead:
        for event in (started, Interrupted(3), metered, saved, started, saved):
            ahead.take(event)
        assert ahead._copy is None
        for event in (metered, saved):
            ahead.take(event)
        assert ahead._copy


def test_a_copy_that_is_not_published_is_removed(
    context: Context, trained: Trained, checkpoint: Path, tmp_path: Path
) -> None:
    """One is of an attempt that failed, one of a model that is not what it was."""
    later = shutil.copytree(checkpoint, tmp_path / "later")
    (metered,) = (event for event in trained[1] if isinstance(event, Metered))
    with Ahead(context) as ahead:
        for event in (metered, Saved(3, str(checkpoint)), Saved(5, str(later))):
            ahead.take(event)
        assert ahead.copy_of(checkpoint) is None
        assert ahead._copy
        ahead._copy[1].result()
        assert len(copies(context.storage)) == 1
    assert copies(context.storage) == []


def test_a_damaged_checkpoint_is_refused_as_without_a_copy(
    context: Context, trained: Trained, checkpoint: Path
) -> None:
    (metered,) = (event for event in trained[1] if isinstance(event, Metered))
    (checkpoint / manifest.MODEL_DIR / "config.json").write_text("{}")
    with Ahead(context) as ahead:
        ahead.take(metered)
        ahead.take(Saved(5, str(checkpoint)))
        with pytest.raises(CheckpointError, match="was altered"):
            published(context, ahead, trained, checkpoint)
    assert copies(context.storage) == []
