"""The `TaskEndpoint` of masked language models."""

from collections.abc import Mapping, Sequence
from typing import Any

import fastapi

from serve.config import ReplicaConfig
from serve.http.handler import Handler
from serve.tasks.comparison import Comparison, compare_perplexities
from serve.tasks.endpoint import SendRequest, TaskEndpoint
from serve.tasks.masked_lm.schemas import MAX_TEXTS, PATH
from serve.tasks.request_bodies import grouped
from serve.version import ModelVersion

MASK = "[MASK]"
"""Mask token of an endpoint whose `/health` does not name it."""


class FillMaskEndpoint(TaskEndpoint):
    """Serves masked language models at `/predict`."""

    path = PATH
    title = "Masked language models"
    is_exportable = True

    def load(self, config: ReplicaConfig) -> Handler:
        """Starts a masked language model; raises CheckpointError or DeployError."""
        from serve.tasks.masked_lm.handler import FillMaskHandler  # imports torch

        return FillMaskHandler(config)

    def application(self) -> fastapi.FastAPI:
        """Returns the FastAPI application of a masked language model."""
        from serve.tasks.masked_lm import routes

        return routes.api

    def bodies(
        self, texts: Sequence[str], model: Mapping[str, Any], *, per_request: int, tokens: int
    ) -> list[Any]:
        """Returns requests of texts whose last word is hidden, alone or in lists."""
        mask = str(model.get("mask_token", MASK))
        hidden = [" ".join([*text.split()[:-1], mask]) for text in texts]
        if per_request == 1:
            return [{"inputs": text} for text in hidden]
        return [
            {"inputs": [hidden[(first + n) % len(hidden)] for n in range(per_request)]}
            for first in range(0, len(hidden), per_request)
        ]

    def questions(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Returns lists of texts with masks."""
        groups = grouped(inputs, MAX_TEXTS, options)
        return [{"inputs": group, **options} for group in groups]

    def predictions(self, reply: Any) -> list[Any]:
        """Returns the fillings of each text."""
        return list(reply)

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """Compares the perplexities that both versions had on their own evaluation rows."""
        known = [version.metrics.get("perplexity") for version in (old, new)]
        return (compare_perplexities(known[0], known[1]) if known[0] and known[1] else None), ()


ENDPOINT = FillMaskEndpoint()
