"""The FastAPI application of a masked language model: predictions, health, page."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import app
from serve.http.errors import ErrorBody
from serve.tasks.masked_lm.handler import FillMaskHandler
from serve.tasks.masked_lm.schemas import PATH, SENTENCES, Filling, FillRequest, MaskedInfo

DESCRIPTION = "A masked language model served by Winnow. POST texts with masks to `predict`."
api = app.create_application(DESCRIPTION, SENTENCES)


def ready() -> FillMaskHandler:
    """Returns the handler of this process; raises HttpError 503 until it is ready."""
    return cast("FillMaskHandler", app.require_handler())


@api.post(
    PATH,
    response_model=list[Filling] | list[list[Filling]] | list[list[list[Filling]]],
    responses=app.ERRORS,
)
async def predict(body: FillRequest, request: fastapi.Request) -> Any:
    """Fills the masks of one text, or of each text of a list.

    The answer is that of transformers' fill-mask pipeline: the likeliest tokens of a text with one
    mask, a list of them for each mask of a text with several, and a list of these for a list.
    """
    return await app.answered(ready().fill(body, app.timeout(request)), request)


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> MaskedInfo:
    """Describes the model that this endpoint serves."""
    return ready().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page to try the model in a browser."""
    return app.page(__package__)
