"""What serving asks of a task besides its handler: routes, bodies of requests, comparisons."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import fastapi

from jobs.errors import RequestError
from serve.batching.client import InferenceClient
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.handler import Handler, PredictHandler
from serve.http.metrics import Metrics
from serve.tasks.answers import Prediction
from serve.tasks.comparison import Comparison
from serve.version import ModelVersion

Ask = Callable[[ModelVersion, Any], Any]
"""Sends a body to a version of a model, and returns what it answers; raises DeployError."""


class TaskEndpoint(abc.ABC):
    """How models of a task are served."""

    path: ClassVar[str]
    """Where predictions are requested by POST, below the endpoint's route."""
    title: ClassVar[str]
    """What its models are called in a heading."""
    is_exportable: ClassVar[bool] = False
    """Whether other servers can run its models as a graph with tokens in and scores out."""

    @abc.abstractmethod
    def load(self, config: ReplicaConfig) -> Handler:
        """A loaded, warm handler. Raises CheckpointError when the model's files were altered."""

    @abc.abstractmethod
    def application(self) -> fastapi.FastAPI:
        """The routes of its endpoints."""

    @abc.abstractmethod
    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Bodies of requests for a load test.

        Args:
            texts: Sentences in random order.
            model: What the endpoint says of its model.
            per_request: Texts in one request; DeployError where the task takes no lists.
            tokens: Most tokens of a generated answer.
        """

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Bodies of requests that together ask for a prediction of each input, in order.

        `options` are further fields of each body. Raises RequestError for an input of another kind.
        """
        raise RequestError(
            f"{self.title} cannot be asked from Python; POST to {self.path} of the endpoint"
        )

    def predictions(self, reply: Any) -> list[Prediction]:
        """The predictions in the answer to one of the bodies that `questions` returns."""
        raise NotImplementedError(f"{self.title} have no predictions")

    def in_frontend(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> PredictHandler[Any]:
        """The handler of a frontend, whose scores a replica computes."""
        raise NotImplementedError(f"{self.title} have no frontends")

    def compare(
        self, old: ModelVersion, new: ModelVersion, ask: Ask
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Two versions on evaluation rows, and the texts of these; None where there are none."""
        return None, ()

    def evaluation_texts(self, version: ModelVersion) -> Sequence[str]:
        """Texts of the rows that a version was evaluated with; none where they are not known."""
        return ()
