"""The Ray Serve application: an ingress that batches texts and asks the engine."""

import asyncio
from typing import Any

import fastapi
import fastapi.exceptions
import fastapi.responses
import ray.serve

from jobs.spec.train import Precision
from jobs.training.config import Device
from serve.api import (
    ErrorBody,
    ErrorDetail,
    LabelScore,
    ModelInfo,
    PredictRequest,
    as_texts,
    describe,
)
from serve.engine import Engine, Label, Text
from serve.version import ModelVersion

DESCRIPTION = "Text classification served by Winnow. POST texts to `predict`."

api = fastapi.FastAPI(title="Winnow endpoint", description=DESCRIPTION, version="1")


@api.exception_handler(fastapi.exceptions.RequestValidationError)
async def refuse_invalid(
    _: fastapi.Request, error: fastapi.exceptions.RequestValidationError
) -> fastapi.responses.JSONResponse:
    """Answer 422 without repeating the input, as FastAPI would."""
    return failure(422, "invalid_request", describe(list(error.errors())))


def failure(status: int, code: str, message: str) -> fastapi.responses.JSONResponse:
    """An error answer in the one shape."""
    body = ErrorBody(error=ErrorDetail(code=code, message=message))
    return fastapi.responses.JSONResponse(body.model_dump(), status_code=status)


@ray.serve.deployment
@ray.serve.ingress(api)
class Classifier:
    """One replica: a loaded model behind a dynamic batch."""

    def __init__(
        self,
        version: ModelVersion,
        precision: Precision,
        device: Device,
        max_batch_size: int,
        max_wait_s: float,
    ) -> None:
        self._version = version
        self._engine = Engine(version, precision=precision, device=device)
        self._predict.set_max_batch_size(max_batch_size)
        self._predict.set_batch_wait_timeout_s(max_wait_s)

    @api.post(
        "/predict",
        response_model=LabelScore | list[LabelScore],
        responses={422: {"model": ErrorBody}},
    )
    async def predict(self, request: PredictRequest) -> Any:
        """Label one text, or each text of a list."""
        try:
            texts = as_texts(request.inputs, is_pair=self._version.is_pair)
        except ValueError as error:
            return failure(422, "invalid_request", str(error))
        labels = await asyncio.gather(*(self._predict(text) for text in texts))
        answers = [LabelScore(label=found.label, score=found.score) for found in labels]
        return answers if isinstance(request.inputs, list) else answers[0]

    @api.get("/health")
    async def health(self) -> ModelInfo:
        """Say which model answers."""
        version = self._version
        return ModelInfo(
            name=version.name,
            version=version.id,
            labels=list(version.labels),
            metrics=version.metrics,
        )

    @ray.serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)  # type: ignore[untyped-decorator]
    async def _predict(self, texts: list[Text]) -> list[Label]:
        return await asyncio.to_thread(self._engine.predict, texts)
