"""The FastAPI application of a classifier: predictions, health, Open Inference Protocol, page."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import open_inference
from serve.http.app import (
    ERRORS,
    create_application,
    fastapi_response,
    page,
    require_handler,
    timeout,
)
from serve.http.errors import ErrorBody
from serve.tasks.text_classification.handler import ClassificationHandler
from serve.tasks.text_classification.schemas import (
    PATH,
    SENTENCES,
    LabelScore,
    ModelInfo,
    PredictRequest,
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


def add_routes(application: fastapi.FastAPI) -> None:
    """Adds what all problems have: the model's description, a page, the Open Inference Protocol."""

    @application.get("/health", responses={503: {"model": ErrorBody}})
    async def health() -> ModelInfo:
        """Describes the model that this endpoint serves."""
        return classifier().info

    @application.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
    async def playground() -> fastapi.responses.HTMLResponse:
        """A page to try the model in a browser."""
        return page(__package__)

    open_inference.add_routes(application)


add_routes(api)
