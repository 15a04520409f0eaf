"""The handler that endpoints share which write text: the model's folder, limits, and counters."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import prometheus_client

from jobs.errors import DeployError
from serve.batching.client import DeadlineError, Load, QueueFullError
from serve.config import ReplicaConfig
from serve.http.handler import Handler, error_of
from serve.http.metrics import Metrics
from serve.version import fetched


class Queued(Protocol):
    """What writes text, as far as all handlers use it."""

    queue_tokens: int
    """Most tokens that wait."""

    @property
    def load(self) -> Load:
        """The requests that wait or are being answered."""


GeneratorT = TypeVar("GeneratorT", bound=Queued)


@dataclass(slots=True)
class Counted:
    """What a request has read and written so far."""

    read: int = 0
    written: int = 0


class GenerationHandler(Handler, Generic[GeneratorT]):
    """Answers requests with text that a model writes."""

    takes_adapters: ClassVar[bool] = False
    """Whether it serves adapters that are not merged into their base."""

    def __init__(self, config: ReplicaConfig) -> None:
        """Reads the model and starts its generator.

        Raises:
            CheckpointError: if a file of the model is missing or was altered.
            DeployError: if the version is an adapter without its base model.
        """
        version = fetched(config.version)
        folder = Path(version.path)
        if not (self.takes_adapters or (folder / "config.json").exists()):
            raise DeployError(
                f"{version.name} {version.id} is an adapter without its base model; train it with"
                " model.adapter.merge: true to serve it"
            )
        config = replace(config, version=version)
        super().__init__(config, Metrics(version.name, version.id))
        self.precision = config.precision or ("bf16" if config.device == "cuda" else "fp32")
        self.generator: GeneratorT = self.start(folder)
        fixed: dict[str, Any] = {"registry": self.metrics.registry, "namespace": "winnow_serve"}
        self._prompt_tokens = prometheus_client.Counter(
            "prompt_tokens", "Tokens of prompts.", **fixed
        )
        self._answer_tokens = prometheus_client.Counter(
            "answer_tokens", "Tokens of answers.", **fixed
        )

    def start(self, folder: Path) -> GeneratorT:
        """Returns the generator of the model in a folder, with the settings of `config`."""
        raise NotImplementedError

    @property
    def load(self) -> Load:
        """The requests that wait now."""
        return self.generator.load

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Changes fields named in `ADJUSTABLE`, from the next request on."""
        super().adjust(changes)
        self.generator.queue_tokens = self.config.queue_tokens

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counted]:
        """Counts a request's tokens and time once the context ends, if anything was written.

        Raises:
            HttpError: 503 if the queue is full, 504 if the answer is late.
        """
        begin, counted = time.perf_counter(), Counted()
        try:
            yield counted
        except (QueueFullError, DeadlineError) as error:
            raise error_of(error) from None
        finally:
            if counted.written:
                self._prompt_tokens.inc(counted.read)
                self._answer_tokens.inc(counted.written)
                self.metrics.latency.observe(time.perf_counter() - begin)
