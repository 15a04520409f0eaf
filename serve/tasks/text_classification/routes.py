"""The application of a classifier behind the guard: health, protocol v2, playground."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import open_inference
from serve.http.app import ERRORS, framework, page, ready, response, timeout
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


open_inference.add_routes(api)
