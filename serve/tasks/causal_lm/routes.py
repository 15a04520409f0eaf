"""The FastAPI application of a language model: chat completions, models, health, page."""

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import fastapi
import fastapi.responses

from serve.http import app
from serve.http.asgi import cancel_on_disconnect
from serve.http.errors import ErrorBody, HttpError
from serve.tasks.causal_lm import completions
from serve.tasks.causal_lm.answer import Piece, whole
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.schemas import (
    PATH,
    ChatInfo,
    ChatPiece,
    ChatRequest,
    ChatResponse,
    Choice,
    Delta,
    Message,
    Model,
    Models,
    PieceChoice,
    Usage,
)
from serve.tasks.generating.schemas import Finish

DESCRIPTION = (
    "A language model served by Winnow. POST conversations to `v1/chat/completions`, and texts to"
    " continue to `v1/completions`."
)
DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""

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
    """Lists the models of this endpoint, which is one."""
    return Models(data=[Model(id=ready().config.version.name, created=app.STARTED)])


@api.post(
    PATH,
    response_model=ChatResponse,
    responses={**app.ERRORS, 404: {"model": ErrorBody}},
)
async def complete(body: ChatRequest, request: fastapi.Request) -> Any:
    """Answers a conversation, complete or as a stream of events."""
    handler = ready()
    name = handler.config.version.name
    if body.model not in (None, name):
        raise HttpError(404, "not_found", f"this endpoint serves {name}", param="model")
    ids = handler.prompt(body)
    pieces = handler.write(ids, body, app.timeout(request))
    identity = f"chatcmpl-{uuid.uuid4().hex}"
    try:
        if body.stream:  # the first piece, to raise an error while another status can be sent
            first = await cancel_on_disconnect(anext(pieces), request.receive)
        else:
            text, last = await cancel_on_disconnect(whole(pieces), request.receive)
    except ConnectionError:
        return app.gone()
    if body.stream:
        events = _events(first, pieces, body, identity, name, len(ids))
        return fastapi.responses.StreamingResponse(
            events, media_type="text/event-stream", headers=_headers(handler)
        )
    assert last.finish is not None
    message = Message(role="assistant", content=text)
    answer = ChatResponse(
        id=identity,
        created=int(time.time()),
        model=name,
        choices=[Choice(message=message, finish_reason=last.finish)],
        usage=_usage(len(ids), last.tokens),
    )
    return fastapi.responses.JSONResponse(answer.model_dump(), headers=_headers(handler))


async def _events(
    first: Piece,
    rest: AsyncGenerator[Piece],
    body: ChatRequest,
    identity: str,
    name: str,
    prompt_tokens: int,
) -> AsyncIterator[bytes]:
    created = int(time.time())

    def event(
        delta: Delta | None, finish: Finish | None = None, usage: Usage | None = None
    ) -> bytes:
        choices = [] if delta is None else [PieceChoice(delta=delta, finish_reason=finish)]
        piece = ChatPiece(id=identity, created=created, model=name, choices=choices, usage=usage)
        return b"data: " + piece.model_dump_json(exclude_none=not choices).encode() + b"\n\n"

    yield event(Delta(role="assistant", content=""))
    piece = first
    async with contextlib.aclosing(rest):  # the generation ends when the client disconnects
        while True:
            if piece.text:
                yield event(Delta(content=piece.text))
            if piece.finish:
                break
            piece = await anext(rest)
    yield event(Delta(), piece.finish)
    if body.stream_options and body.stream_options.include_usage:
        yield event(None, usage=_usage(prompt_tokens, piece.tokens))
    yield DONE


def _usage(read: int, written: int) -> Usage:
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def _headers(handler: ChatHandler) -> dict[str, str]:
    return {"x-model-version": handler.config.version.id}
