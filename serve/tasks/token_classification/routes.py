"""The FastAPI application of a classifier of tokens: predictions, health, protocol, page."""

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
from serve.tasks.token_classification.handler import TokenHandler
from serve.tasks.token_classification.schemas import (
    PATH,
    SENTENCES,
    Entities,
    EntityModelInfo,
    EntityRequest,
)

DESCRIPTION = "Token classification served by Winnow. POST texts to `predict`."
api = create_application(DESCRIPTION, SENTENCES)


def classifier() -> TokenHandler:
    """Returns the classifier of this process; raises HttpError 503 until it is ready."""
    return cast("TokenHandler", require_handler())


@api.post(PATH, response_model=Entities | list[Entities], responses=ERRORS)
async def predict(body: EntityRequest, request: fastapi.Request) -> Any:
    """Finds the entities of one text, or of each text of a list.

    The response's headers give the model version, the time in the queue, and the rows of the batch.
    """
    # this route is for the OpenAPI document: the request guard answers the requests themselves
    return fastapi_response(await classifier().predict(await request.body(), timeout(request)))


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> EntityModelInfo:
    """Describes the model that this endpoint serves."""
    return classifier().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page to try the model in a browser."""
    return page(__package__)


open_inference.add_routes(api)
