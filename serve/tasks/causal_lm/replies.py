"""Replies to requests for text, whole or as server-sent events."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import fastapi
import fastapi.responses
from pydantic import BaseModel

from serve.http import app
from serve.http.asgi import cancel_on_disconnect
from serve.http.errors import ErrorBody
from serve.http.guard import REQUEST_ID
from serve.http.handler import error_of
from serve.tasks.causal_lm.answer import Piece
from serve.tasks.causal_lm.choices import collected
from serve.tasks.causal_lm.generation_request import GenerationRequest, Usage

DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""


class Reply(Protocol):
    """Writes answers as the messages of one API."""

    def begin(self) -> Iterator[BaseModel]:
        """Yields the events before the first piece."""
        ...

    def parts(self, index: int, piece: Piece) -> Iterator[BaseModel]:
        """Yields the events of a piece of one answer."""
        ...

    def used(self, usage: Usage) -> BaseModel:
        """Returns the event of the tokens that were used."""
        ...

    def whole(self, answers: Sequence[Piece], usage: Usage) -> BaseModel:
        """Returns the message of whole answers."""
        ...


async def send(
    request: fastapi.Request,
    body: GenerationRequest,
    reply: Reply,
    pieces: AsyncGenerator[tuple[int, Piece]],
    *,
    prompts: Sequence[Sequence[int]],
    headers: Mapping[str, str],
) -> Any:
    """Returns the response to a request, whose prompts have these tokens.

    Raises:
        HttpError: if no answer can be begun.
    """
    read, count = sum(map(len, prompts)), len(prompts) * body.n
    try:
        if not body.stream:
            answers = await cancel_on_disconnect(collected(pieces, count), request.receive)
            usage = _usage(read, sum(answer.tokens for answer in answers))
            found = reply.whole(answers, usage).model_dump()
            return fastapi.responses.JSONResponse(found, headers=dict(headers))
        # the first piece, to raise an error while another status can be sent
        first = await cancel_on_disconnect(anext(pieces), request.receive)
    except ConnectionError:
        return app.gone()
    has_usage = body.stream_options is not None and body.stream_options.include_usage
    events = _events(first, pieces, reply, read, has_usage=has_usage)
    whole = _to_the_end(events, getattr(request.state, REQUEST_ID, ""))
    return fastapi.responses.StreamingResponse(
        whole, media_type="text/event-stream", headers=dict(headers)
    )


async def _to_the_end(events: AsyncGenerator[bytes], request_id: str) -> AsyncIterator[bytes]:
    """Yields the events of a stream, and an error as its last event, as OpenAI's clients expect."""
    async with contextlib.aclosing(events):
        try:
            async for event in events:
                yield event
        except Exception as error:  # noqa: BLE001 - no traceback reaches a client
            yield _event(ErrorBody(error=error_of(error).detail(request_id)))


async def _events(
    first: tuple[int, Piece],
    rest: AsyncGenerator[tuple[int, Piece]],
    reply: Reply,
    read: int,
    *,
    has_usage: bool,
) -> AsyncGenerator[bytes]:
    written = dict[int, int]()
    for part in reply.begin():
        yield _event(part)
    async with contextlib.aclosing(rest):  # the generation ends when the client disconnects
        found: tuple[int, Piece] | None = first
        while found is not None:
            index, piece = found
            written[index] = piece.tokens
            for part in reply.parts(index, piece):
                yield _event(part)
            found = await anext(rest, None)
    if has_usage:
        yield _event(reply.used(_usage(read, sum(written.values()))))
    yield DONE


def _event(part: BaseModel) -> bytes:
    return b"data: " + part.model_dump_json().encode() + b"\n\n"


def _usage(read: int, written: int) -> Usage:
    return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)
