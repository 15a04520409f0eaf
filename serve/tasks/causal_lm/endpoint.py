"""The `TaskEndpoint` of language models."""

from collections.abc import Mapping, Sequence
from typing import Any

import fastapi

from jobs.errors import DeployError
from serve.config import ReplicaConfig
from serve.http.handler import Handler
from serve.tasks.answers import Answer, Prediction
from serve.tasks.causal_lm.schemas import PATH
from serve.tasks.comparison import Comparison, compare_harness, compare_perplexities
from serve.tasks.endpoint import SendRequest, TaskEndpoint
from serve.version import ModelVersion


class ChatEndpoint(TaskEndpoint):
    """Serves language models at `/v1/chat/completions`."""

    path = PATH
    title = "Language models"
    is_streaming = True

    def load(self, config: ReplicaConfig) -> Handler:
        """Starts a language model; raises CheckpointError or DeployError."""
        from serve.tasks.causal_lm.handler import ChatHandler  # imports torch and transformers

        return ChatHandler(config)

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of a language model."""
        from serve.tasks.causal_lm import routes

        return routes.api

    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Returns conversations of one message each; raises DeployError for lists."""
        if per_request > 1:
            raise DeployError(
                f"{per_request} texts per request: a language model accepts one conversation per"
                " request; use 1"
            )
        return self.questions(texts, {"max_tokens": tokens, "temperature": 0})

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """A conversation each: a text is what the user says, `{"messages": […]}` has all turns."""
        return [
            {**(each if isinstance(each, Mapping) else _said(each)), **options} for each in inputs
        ]

    def predictions(self, reply: Any) -> list[Prediction]:
        """The one answer."""
        (choice,) = reply["choices"]
        return [Answer(choice["message"]["content"], choice["finish_reason"])]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the perplexities that both versions had on their own evaluation rows.

        Metrics of the harness are compared too.
        """
        known = [version.metrics.get("perplexity") for version in (old, new)]
        found = compare_perplexities(known[0], known[1]) if known[0] and known[1] else None
        judged = compare_harness(old.metrics, new.metrics)
        if not judged:
            return found, ()
        summary = found.summary if found else "tasks of the harness"
        return Comparison(summary, {**(found.metrics if found else {}), **judged}), ()


ENDPOINT = ChatEndpoint()


def _said(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}
