"""The interface of a task's endpoint: handler, routes, requests of a load test, comparison."""

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
from serve.tasks.comparison import Comparison
from serve.version import ModelVersion

SendRequest = Callable[[ModelVersion, Any], Any]
"""Sends a request body to a model version and returns the answer's JSON; raises DeployError."""


class TaskEndpoint(abc.ABC):
    """Serves the models of one task."""

    path: ClassVar[str]
    """Path for the POST of predictions, below the endpoint's route."""
    title: ClassVar[str]
    """Name of the task's models in a heading."""
    is_exportable: ClassVar[bool] = False
    """True if other servers can run the models as a graph from tokens to scores."""
    is_streaming: ClassVar[bool] = False
    """True if `stream: true` in a body asks for the answer in events, as OpenAI's API has them."""

    @abc.abstractmethod
    def load(self, config: ReplicaConfig) -> Handler:
        """Starts a warm handler.

        Raises:
            CheckpointError: if a file of the model is missing or was altered.
            DeployError: if the model cannot be served with this configuration.
        """

    @abc.abstractmethod
    def application(self) -> fastapi.FastAPI:
        """Returns the task's FastAPI application."""

    @abc.abstractmethod
    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Returns the request bodies of a load test.

        Args:
            texts: Sentences in random order.
            model: JSON of the endpoint's `/health`; empty if it has none.
            per_request: Texts in one request.
            tokens: Most tokens of a generated answer.

        Raises:
            DeployError: if `per_request` is over 1 and the task accepts no lists.
        """

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Bodies of requests that together ask for a prediction of each input, in order.

        `options` are further fields of each body. Raises RequestError for an input of another kind.
        """
        raise RequestError(
            f"{self.title} cannot be asked from Python; POST to {self.path} of the endpoint"
        )

    def predictions(self, reply: Any) -> list[Any]:
        """The predictions, such as `serve.tasks.answers`, in a reply to a body of `questions`."""
        raise NotImplementedError(f"{self.title} have no predictions")

    def in_frontend(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> PredictHandler[Any]:
        """Returns a frontend worker's handler, which gets its scores from the replica."""
        raise NotImplementedError(f"{self.title} have no frontends")

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares two versions on evaluation rows.

        Returns the comparison, None if the versions have nothing to compare, and the rows' texts.
        """
        return None, ()

    def evaluation_texts(self, version: ModelVersion) -> Sequence[str]:
        """Returns the texts of a version's evaluation rows; empty if it has none."""
        return ()
