"""The application of a classifier behind the guard: health, protocol v2, playground."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http.app import ERRORS, framework, page, ready, response, timeout
from serve.http.errors import ErrorBody, HttpError
from serve.tasks.text_classification.handler import ClassificationHandler
from serve.tasks.text_classification.schemas import (
    PATH,
    SENTENCES,
    InferRequest,
    InferResponse,
    LabelScore,
    ModelInfo,
    ModelMetadata,
    PredictRequest,
    Tensor,
    TensorInfo,
    texts_of,
)

DESCRIPTION = "Text classification served by Winnow. POST texts to `predict`."
api = framework(DESCRIPTION, SENTENCES)


def classifier() -> ClassificationHandler:
    """The classifier of this process; HttpError until it is there."""
    return cast("ClassificationHandler", ready())


@api.post(
    PATH,
    response_model=LabelScore | list[LabelScore] | list[list[LabelScore]],
    responses=ERRORS,
)
async def predict(body: PredictRequest, request: fastapi.Request) -> Any:
    """Label one text, a pair of texts, or each of a list.

    The headers of the answer say which model version gave it, how long it waited and in company of
    how many texts.
    """
    # in the OpenAPI document by this, answered by the guard before it
    return response(await classifier().predict(await request.body(), timeout(request)))


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> ModelInfo:
    """Say which model answers."""
    return classifier().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page for people."""
    return page(__package__)


@api.get("/v2")
async def server_metadata() -> dict[str, Any]:
    """Open Inference Protocol: the server."""
    return {"name": "winnow", "version": "1", "extensions": []}


@api.get("/v2/models/{name}", responses={404: {"model": ErrorBody}})
async def model_metadata(name: str) -> ModelMetadata:
    """Open Inference Protocol: what the model takes and gives."""
    handler = named(name)
    version = handler.config.version
    inputs = ("text", "text_pair") if version.is_pair else ("text",)
    return ModelMetadata(
        name=version.name,
        versions=[version.id],
        platform=f"winnow_{handler.choice.engine}",
        inputs=[TensorInfo(name=found, datatype="BYTES", shape=[-1]) for found in inputs],
        outputs=[
            TensorInfo(name="label", datatype="BYTES", shape=[-1]),
            TensorInfo(name="score", datatype="FP32", shape=[-1]),
            TensorInfo(name="scores", datatype="FP32", shape=[-1, len(version.labels)]),
        ],
    )


@api.get("/v2/models/{name}/ready", responses={404: {"model": ErrorBody}})
async def model_ready(name: str) -> dict[str, Any]:
    """Open Inference Protocol: whether this model answers."""
    return {"name": named(name).config.version.name, "ready": True}


@api.post("/v2/models/{name}/infer", responses={**ERRORS, 404: {"model": ErrorBody}})
async def infer(name: str, body: InferRequest, request: fastapi.Request) -> InferResponse:
    """Open Inference Protocol: label the texts of the tensor `text`."""
    return await inferred(named(name), body, timeout(request))


async def inferred(
    handler: ClassificationHandler, body: InferRequest, timeout_s: float
) -> InferResponse:
    """Labels and scores of a protocol request's texts; HttpError."""
    version = handler.config.version
    texts = texts_of(body, is_pair=version.is_pair)
    found = (await handler.score(texts, timeout_s)).scores
    scores = [max(row) for row in found]
    labels = [version.labels[row.index(score)] for row, score in zip(found, scores, strict=True)]
    every = [score for row in found for score in row]
    count = len(texts)
    return InferResponse(
        id=body.id,
        model_name=version.name,
        model_version=version.id,
        outputs=[
            Tensor(name="label", shape=[count], datatype="BYTES", data=labels),
            Tensor(name="score", shape=[count], datatype="FP32", data=scores),
            Tensor(name="scores", shape=[count, len(version.labels)], datatype="FP32", data=every),
        ],
    )


def named(name: str) -> ClassificationHandler:
    """The handler, when it is the model that is asked for."""
    handler = classifier()
    if name != handler.config.version.name:
        raise HttpError(404, "not_found", "no such model answers here")
    return handler
