"""The route of completions: continues a plain text, as OpenAI's older API does."""

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
from serve.tasks.causal_lm.answer import Piece, whole
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.schemas import (
    COMPLETIONS_PATH,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    Usage,
)
from serve.tasks.generating.schemas import Finish

DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""

router = fastapi.APIRouter()


@router.post(
    COMPLETIONS_PATH,
    response_model=CompletionResponse,
    responses={**app.ERRORS, 404: {"model": ErrorBody}},
)
async def continue_text(body: CompletionRequest, request: fastapi.Request) -> Any:
    """Continues a text, complete or as a stream of events."""
    handler = cast("ChatHandler", app.require_handler())
    name = handler.config.version.name
    if body.model not in (None, name):
        raise HttpError(404, "not_found", f"this endpoint serves {name}", param="model")
    ids = handler.beginning(body)
    headers = {"x-model-version": handler.config.version.id}
    answer = _Answer(f"cmpl-{uuid.uuid4().hex}", int(time.time()), name, len(ids))
    pieces = handler.write(ids, body, app.timeout(request))
    try:
        if body.stream:  # the first piece, to raise an error while another status can be sent
            first = await cancel_on_disconnect(anext(pieces), request.receive)
        else:
            text, last = await cancel_on_disconnect(whole(pieces), request.receive)
    except ConnectionError:
        return app.gone()
    if body.stream:
        has_usage = body.stream_options is not None and body.stream_options.include_usage
        events = _events(first, pieces, answer, has_usage=has_usage)
        return fastapi.responses.StreamingResponse(
            events, media_type="text/event-stream", headers=headers
        )
    found = answer.part(text, last.finish, usage=answer.usage(last.tokens))
    return fastapi.responses.JSONResponse(found.model_dump(), headers=headers)


class _Answer:
    """What all parts of an answer have in common."""

    def __init__(self, identity: str, created: int, model: str, prompt_tokens: int) -> None:
        self._common = {"id": identity, "created": created, "model": model}
        self._prompt_tokens = prompt_tokens

    def part(
        self, text: str | None, finish: Finish | None = None, usage: Usage | None = None
    ) -> CompletionResponse:
        """Returns a part of the answer; without text, one that holds the usage alone."""
        choices = [] if text is None else [CompletionChoice(text=text, finish_reason=finish)]
        return CompletionResponse(**self._common, choices=choices, usage=usage)

    def usage(self, written: int) -> Usage:
        """Returns the tokens of prompt and answer."""
        read = self._prompt_tokens
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


async def _events(
    first: Piece, rest: AsyncGenerator[Piece], answer: _Answer, *, has_usage: bool
) -> AsyncIterator[bytes]:
    def event(part: CompletionResponse) -> bytes:
        return b"data: " + part.model_dump_json().encode() + b"\n\n"

    piece = first
    async with contextlib.aclosing(rest):  # the generation ends when the client disconnects
        while True:
            if piece.text or piece.finish:
                yield event(answer.part(piece.text, piece.finish))
            if piece.finish:
                break
            piece = await anext(rest)
    if has_usage:
        yield event(answer.part(None, usage=answer.usage(piece.tokens)))
    yield DONE
