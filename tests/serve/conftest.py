"""A tiny published model that the tests of serving share."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.training.loop import train
from orchestrator.records import registry
from serve.tasks.causal_lm.answer import Writer
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


class HeldAnswers:
    """Answers of language models, each of which waits behind its first text."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.tokens = 0
        """That were written in all."""

    def wait(self, writer: Writer) -> None:
        """Called before each token."""
        if writer._sent:
            self.begun.set()
            self.go_on.wait(60)
        self.tokens += 1


@pytest.fixture
def held_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldAnswers]:
    """Answers wait in their middle until `go_on` is set, however fast the machine is."""
    found, put = HeldAnswers(), Writer.put

    def hold(self: Writer, *arguments: Any, **options: Any) -> None:
        found.wait(self)
        put(self, *arguments, **options)

    monkeypatch.setattr(Writer, "put", hold)
    yield found
    found.go_on.set()
