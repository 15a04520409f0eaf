"""The FastAPI application of an encoder-decoder model: texts, health, page."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import app
from serve.http.errors import ErrorBody
from serve.tasks.seq2seq.handler import WriterHandler
from serve.tasks.seq2seq.schemas import PATH, SENTENCES, GenerateRequest, WriterInfo, Written

DESCRIPTION = "A model that writes text, served by Winnow. POST texts to `generate`."

api = app.create_application(DESCRIPTION, SENTENCES)


def ready() -> WriterHandler:
    """Returns the handler of this process; raises HttpError 503 until it is ready."""
    return cast("WriterHandler", app.require_handler())


@api.post(PATH, response_model=Written | list[Written], responses=app.ERRORS)
async def generate(body: GenerateRequest, request: fastapi.Request) -> Any:
    """Writes a text for one text, or for each of a list.

    The response's headers give the model version, and whether an input was cut.
    """
    handler = ready()
    work = handler.generate(body, app.timeout(request))
    return await app.answered(work, request)


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> WriterInfo:
    """Describes the model that this endpoint serves."""
    return ready().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page to try the model in a browser."""
    return app.page(__package__)
