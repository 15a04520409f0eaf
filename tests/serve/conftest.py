"""A tiny published model that the tests of serving share."""

from pathlib import Path

import pytest

from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.training.loop import train
from orchestrator.records import registry
from serve.version import ModelVersion
from tests.builders import job, language_config, language_data, training_config


@pytest.fixture(scope="session")
def version(
    reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> ModelVersion:
    """A trained and published classifier, with inputs of at most 32 tokens."""
    folder = tmp_path_factory.mktemp("published")
    config = training_config(reviews, tiny_model, epochs=10.0, optimizer=OptimizerSpec(lr=5e-3))
    reference = train(config, lambda _: None, folder / "checkpoints")
    spec = job(data__max_length=32)
    return registry.publish(
        spec, reference, ("negative", "positive"), run_id="test", storage=open_storage(folder)
    )


@pytest.fixture(scope="session")
def published(
    questions: Path, tiny_llama: str, tmp_path_factory: pytest.TempPathFactory
) -> ModelVersion:
    """A tiny Llama that was taught to answer, with conversations of at most 64 tokens."""
    folder = tmp_path_factory.mktemp("chat")
    data = language_data(questions, prompt=None, response=None, messages="messages")
    config = language_config(questions, tiny_llama, data=data, epochs=2.0)
    reference = train(config, lambda _: None, folder / "checkpoints")
    spec = job(data__max_length=64)
    spec = spec.model_copy(update={"model": ModelSpec(base=tiny_llama, task="causal-lm")})
    return registry.publish(spec, reference, (), run_id="test", storage=open_storage(folder))
