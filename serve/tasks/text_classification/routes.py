"""The FastAPI application of a classifier: predictions, health, Open Inference Protocol, page."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http.app import (
    ERRORS,
    create_application,
    fastapi_response,
    page,
    require_handler,
    timeout,
)
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
api = create_application(DESCRIPTION, SENTENCES)


def classifier() -> ClassificationHandler:
    """Returns the classifier of this process; raises HttpError 503 until it is ready."""
    return cast("ClassificationHandler", require_handler())


@api.post(
    PATH,
    response_model=LabelScore | list[LabelScore] | list[list[LabelScore]],
    responses=ERRORS,
)
async def predict(body: PredictRequest, request: fastapi.Request) -> Any:
    """Labels one text, one pair of texts, or each item of a list.

    The response's headers give the model version, the time in the queue, and the rows of the batch.
    """
    # this route is for the OpenAPI document: the request guard answers the requests themselves
    return fastapi_response(await classifier().predict(await request.body(), timeout(request)))


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> ModelInfo:
    """Describes the model that this endpoint serves."""
    return classifier().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page to try the model in a browser."""
    return page(__package__)


@api.get("/v2")
async def server_metadata() -> dict[str, Any]:
    """Open Inference Protocol: the server."""
    return {"name": "winnow", "version": "1", "extensions": []}


@api.get("/v2/models/{name}", responses={404: {"model": ErrorBody}})
async def model_metadata(name: str) -> ModelMetadata:
    """Open Inference Protocol: the model's input and output tensors."""
    handler = named(name)
    version = handler.config.version
    inputs = ("text", "text_pair") if version.is_pair else ("text",)
    return ModelMetadata(
        name=version.name,
        versions=[version.id],
        platform=f"winnow_{handler.choice.engine}",
        inputs=[TensorInfo(name=name, datatype="BYTES", shape=[-1]) for name in inputs],
        outputs=[
            TensorInfo(name="label", datatype="BYTES", shape=[-1]),
            TensorInfo(name="score", datatype="FP32", shape=[-1]),
            TensorInfo(name="scores", datatype="FP32", shape=[-1, len(version.labels)]),
        ],
    )


@api.get("/v2/models/{name}/ready", responses={404: {"model": ErrorBody}})
async def model_ready(name: str) -> dict[str, Any]:
    """Open Inference Protocol: the model is ready; 404 for the name of another model."""
    return {"name": named(name).config.version.name, "ready": True}


@api.post("/v2/models/{name}/infer", responses={**ERRORS, 404: {"model": ErrorBody}})
async def infer(name: str, body: InferRequest, request: fastapi.Request) -> InferResponse:
    """Open Inference Protocol: labels the texts of the tensor `text`."""
    return await infer_texts(named(name), body, timeout(request))


async def infer_texts(
    handler: ClassificationHandler, body: InferRequest, timeout_s: float
) -> InferResponse:
    """Returns labels and scores of the texts of an inference request; raises HttpError."""
    version = handler.config.version
    texts = texts_of(body, is_pair=version.is_pair)
    rows = (await handler.score(texts, timeout_s)).scores
    scores = [max(row) for row in rows]
    labels = [version.labels[row.index(score)] for row, score in zip(rows, scores, strict=True)]
    every = [score for row in rows for score in row]
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
    """Returns the handler of the model with this name; raises HttpError 404 for another name."""
    handler = classifier()
    if name != handler.config.version.name:
        raise HttpError(404, "not_found", f"this endpoint serves {handler.config.version.name}")
    return handler
