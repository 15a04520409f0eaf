"""A tiny classifier of tokens that several modules share."""

from pathlib import Path

import pytest

from jobs.storage.storage import open_storage
from jobs.training.events import Event, Started
from jobs.training.loop import train
from orchestrator.records import registry
from serve.version import ModelVersion
from tests.builders import job
from tests.tasks import token_rows


@pytest.fixture(scope="session")
def names_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of names in sentences."""
    folder = tmp_path_factory.mktemp("names")
    token_rows.write(folder)
    return folder


@pytest.fixture(scope="session")
def entity_run(
    names_folder: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Event], ModelVersion]:
    """The events of a training, and the model that was published."""
    config, events = token_rows.config(names_folder, tiny_model), list[Event]()
    place = tmp_path_factory.mktemp("entities")
    reference = train(config, events.append, place / "checkpoints", proves=True)
    labels = next(event.labels for event in events if isinstance(event, Started))
    spec = job().model_copy(update={"model": config.model, "data": config.data})
    storage = open_storage(place)
    return events, registry.publish(spec, reference, labels, run_id="test", storage=storage)


@pytest.fixture(scope="session")
def entity_version(entity_run: tuple[list[Event], ModelVersion]) -> ModelVersion:
    """The published model."""
    return entity_run[1]
