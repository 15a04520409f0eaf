"""The FastAPI application of a language model: chat completions, models, health, page."""

from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import app
from serve.http.errors import ErrorBody
from serve.tasks.causal_lm import completions, replies
from serve.tasks.causal_lm.chat_reply import ChatReply
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.schemas import (
    PATH,
    ChatInfo,
    ChatRequest,
    ChatResponse,
    Model,
    Models,
)

DESCRIPTION = (
    "A language model served by Winnow. POST conversations to `v1/chat/completions`, and texts to"
    " continue to `v1/completions`."
)
api = app.create_application(DESCRIPTION)
api.include_router(completions.router)


def ready() -> ChatHandler:
    """Returns the handler of this process; raises HttpError 503 until it is ready."""
    return cast("ChatHandler", app.require_handler())


@api.get("/health", responses={503: {"model": ErrorBody}})
async def health() -> ChatInfo:
    """Describes the model that this endpoint serves."""
    return ready().info


@api.get("/", response_class=fastapi.responses.HTMLResponse, include_in_schema=False)
async def playground() -> fastapi.responses.HTMLResponse:
    """A page to try the model in a browser."""
    return app.page(__package__)


@api.get("/v1/models")
async def models() -> Models:
    """Lists the model of this endpoint, and the adapters that were asked for."""
    return Models(data=[Model(id=name, created=app.STARTED) for name in ready().model_names])


@api.post(
    PATH,
    response_model=ChatResponse,
    responses={**app.ERRORS, 404: {"model": ErrorBody}},
)
async def complete(body: ChatRequest, request: fastapi.Request) -> Any:
    """Answers a conversation, complete or as a stream of events."""
    handler = ready()
    named = await handler.named(body.model, app.timeout(request))
    asked = await handler.prompts.asked(body)
    tokens = await handler.vocabulary("logprobs") if body.likeliest is not None else None
    pieces = handler.write(
        [asked.ids],
        body,
        app.timeout(request),
        named=named,
        grammar=asked.grammar,
        shows_special=asked.shows_special,
    )
    reply = ChatReply(
        named.model,
        count=body.n,
        form=asked.form,
        names=[tool.function.name for tool in body.tools],
        tokens=tokens,
    )
    headers = {"x-model-version": named.version}
    return await replies.send(request, body, reply, pieces, prompts=[asked.ids], headers=headers)
