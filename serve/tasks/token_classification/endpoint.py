"""The `TaskEndpoint` of classifiers of tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import fastapi

from serve.batching.client import InferenceClient
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.http.metrics import Metrics
from serve.tasks.answers import Entity
from serve.tasks.comparison import Comparison
from serve.tasks.endpoint import SendRequest
from serve.tasks.text_classification.endpoint import ClassificationEndpoint
from serve.tasks.token_classification import comparison
from serve.tasks.token_classification.comparison import Found, LabelledText
from serve.version import ModelVersion

if TYPE_CHECKING:
    from serve.tasks.token_classification.handler import TokenHandler


class TokenEndpoint(ClassificationEndpoint):
    """Serves classifiers of tokens at `/predict`, which takes texts as a classifier's does."""

    title = "Token classifiers"

    def load(self, config: ReplicaConfig) -> "TokenHandler":  # type: ignore[override]
        """Starts a warm classifier of tokens; raises CheckpointError or DeployError."""
        from serve.tasks.token_classification import handler  # imports torch and transformers

        return handler.load(config)

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of a classifier of tokens."""
        from serve.tasks.token_classification import routes

        return routes.api

    def in_frontend(  # type: ignore[override]
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> "TokenHandler":
        """Returns a frontend worker's handler, which gets its scores from the replica."""
        from serve.tasks.token_classification import handler

        return handler.TokenHandler(config, choice, client, metrics)

    def predictions(self, reply: Any) -> list[Any]:
        """A tuple of entities for each text."""
        return [tuple(map(_entity, row["entities"])) for row in reply]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the entities that both versions find in the old version's evaluation rows.

        Returns None for versions with different labels.
        """
        rows = comparison.evaluation(old)
        if not rows or old.labels != new.labels:
            return None, ()
        found = [self._found(version, rows, send) for version in (old, new)]
        right = [row.entities for row in rows]
        return comparison.compare(found[0], found[1], right), [row.text for row in rows]

    def evaluation_texts(self, version: ModelVersion) -> Sequence[str]:
        """Returns the texts of a version's evaluation rows."""
        return [row.text for row in comparison.evaluation(version)]

    def _found(
        self, version: ModelVersion, rows: Sequence[LabelledText], send: SendRequest
    ) -> list[Found]:
        answers: list[Any] = self.answers(version, [row.text for row in rows], send)
        return [row.within(answer) for row, answer in zip(rows, answers, strict=True)]


ENDPOINT = TokenEndpoint()


def _entity(row: Any) -> Entity:
    return Entity(row["entity"], row["start"], row["end"], row["score"], row["text"])
