"""How ordinal models are served: levels and the probabilities of the steps between them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fastapi
import fastapi.responses
import pydantic_core
from pydantic import BaseModel

from serve.batching.client import Answer, InferenceClient
from serve.config import ReplicaConfig
from serve.engines import startup
from serve.engines.engine import Choice
from serve.http import app
from serve.http.handler import HttpResponse
from serve.http.metrics import Metrics
from serve.tasks.comparison import ComparedMetric, Comparison
from serve.tasks.endpoint import SendRequest
from serve.tasks.text_classification.endpoint import ClassificationEndpoint, evaluation
from serve.tasks.text_classification.handler import ClassificationHandler
from serve.tasks.text_classification.schemas import SENTENCES, ModelInfo, PredictRequest
from serve.version import ModelVersion, fetched


class Level(BaseModel):
    """The level of a text, and how sure the model is that it is above each lower one."""

    level: int
    above: dict[str, float]


class OrdinalHandler(ClassificationHandler):
    """Answers with the level of each text."""

    def render(self, request: PredictRequest, answer: Answer) -> HttpResponse:
        """The levels of a request's texts as JSON."""
        levels = self.config.version.labels
        found = [
            {
                "level": int(levels[sum(score > 0.5 for score in scores)]),
                "above": dict(zip(levels[:-1], scores, strict=True)),
            }
            for scores in answer.scores
        ]
        value = found if isinstance(request.inputs, list) else found[0]
        headers = {"content-type": "application/json", "x-model-version": self.config.version.id}
        return HttpResponse(200, pydantic_core.to_json(value), headers)


api = app.create_application(
    "Ordinal regression served by Winnow. POST texts to `predict`.", SENTENCES
)


@api.post("/predict", response_model=Level | list[Level], responses=app.ERRORS)
async def predict(body: PredictRequest, request: fastapi.Request) -> Any:
    """The level of one text, a pair of texts, or each of a list."""
    handler = app.require_handler()
    assert isinstance(handler, OrdinalHandler)
    return app.fastapi_response(await handler.predict(await request.body(), app.timeout(request)))


@api.get("/health")
async def health() -> ModelInfo:
    """Say which model answers."""
    found: ModelInfo = app.require_handler().info
    return found


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def page() -> fastapi.responses.HTMLResponse:
    """A page for people."""
    return app.page(__package__)


class OrdinalEndpoint(ClassificationEndpoint):
    """Ordinal models, behind `/predict`."""

    title = "Ordinal models"
    is_exportable = False

    def load(self, config: ReplicaConfig) -> OrdinalHandler:
        """A warm model. Raises CheckpointError when the model's files were altered."""
        config = replace(config, version=fetched(config.version))
        metrics = Metrics(config.version.name, config.version.id)
        choice, batcher = startup.start(config, metrics.on_batch)
        return OrdinalHandler(config, choice, batcher, metrics)

    def application(self) -> fastapi.FastAPI:
        """The routes of an ordinal model."""
        return api

    def in_frontend(
        self, config: ReplicaConfig, choice: Choice, client: InferenceClient, metrics: Metrics
    ) -> OrdinalHandler:
        """The handler of a frontend, whose scores a replica computes."""
        return OrdinalHandler(config, choice, client, metrics)

    def predictions(self, reply: Any) -> list[Any]:
        """A level for each input, for Python."""
        return [Level(**row) for row in reply]

    def compare(
        self, old: ModelVersion, new: ModelVersion, send: SendRequest
    ) -> tuple[Comparison | None, Sequence[str]]:
        """The errors of both versions on the evaluation rows of the old one."""
        right, texts = evaluation(old)
        if not texts or old.labels != new.labels:
            return None, ()
        errors = []
        for version in (old, new):
            levels = [row["level"] for row in send(version, {"inputs": list(texts)})]
            off = [abs(level - int(wanted)) for level, wanted in zip(levels, right, strict=True)]
            errors.append(sum(off) / len(off))
        change = errors[1] - errors[0]
        sentence = f"its mean error is {errors[1]:.3f} levels, and the old one's {errors[0]:.3f}"
        return Comparison(f"mae {change:+.3f}", {"mae": ComparedMetric(change, sentence)}), texts


ENDPOINT = OrdinalEndpoint()
