"""The route of completions: continues a plain text, as OpenAI's older API does."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, cast

import fastapi

from serve.http import app
from serve.http.errors import ErrorBody
from serve.tasks.causal_lm import replies
from serve.tasks.causal_lm.answer import Piece, TokenLogprob
from serve.tasks.causal_lm.completion_schemas import (
    COMPLETIONS_PATH,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from serve.tasks.causal_lm.generation_request import Usage
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.vocabulary import Vocabulary

router = fastapi.APIRouter()


@router.post(
    COMPLETIONS_PATH,
    response_model=CompletionResponse,
    responses={**app.ERRORS, 404: {"model": ErrorBody}},
)
async def continue_text(body: CompletionRequest, request: fastapi.Request) -> Any:
    """Continues a text, complete or as a stream of events."""
    handler = cast("ChatHandler", app.require_handler())
    named = await handler.named(body.model, app.timeout(request))
    prompts = await handler.prompts.beginnings(body)
    tokens = await handler.vocabulary("logprobs") if body.likeliest is not None else None
    pieces = handler.write(prompts, body, app.timeout(request), named=named)
    reply = _Reply(named.model, tokens)
    headers = {"x-model-version": named.version}
    return await replies.send(request, body, reply, pieces, prompts=prompts, headers=headers)


class _Reply:
    """Writes continuations as OpenAI's older API has them."""

    def __init__(self, model: str, tokens: Vocabulary | None) -> None:
        """Args: the model's name, and its tokens where their log-probabilities are asked for."""
        identity, created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self._common: Any = {"id": identity, "created": created, "model": model}
        self._tokens = tokens

    def begin(self) -> Iterator[CompletionResponse]:
        """Yields no event."""
        yield from ()

    def parts(self, index: int, piece: Piece) -> Iterator[CompletionResponse]:
        """Yields the event of a piece, unless it is empty."""
        if piece.text or piece.finish or piece.logprobs:
            yield CompletionResponse(**self._common, choices=[self._choice(index, piece)])

    def used(self, usage: Usage) -> CompletionResponse:
        """Returns the event of the tokens that were used."""
        return CompletionResponse(**self._common, choices=[], usage=usage)

    def whole(self, answers: Sequence[Piece], usage: Usage) -> CompletionResponse:
        """Returns the message of whole continuations."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return CompletionResponse(**self._common, choices=choices, usage=usage)

    def _choice(self, index: int, piece: Piece) -> CompletionChoice:
        logprobs = None if self._tokens is None else _logprobs(piece.logprobs, self._tokens)
        return CompletionChoice(
            index=index, text=piece.text, finish_reason=piece.finish, logprobs=logprobs
        )


def _logprobs(found: Sequence[TokenLogprob], tokens: Vocabulary) -> CompletionLogprobs:
    def name(token: int) -> str:
        return _name(tokens.bytes_of(token))

    return CompletionLogprobs(
        tokens=[name(each.token) for each in found],
        token_logprobs=[each.logprob for each in found],
        top_logprobs=[{name(token): value for token, value in each.likeliest} for each in found],
        text_offset=[each.start for each in found],
    )


def _name(token: bytes) -> str:
    """Returns a token's text, or its bytes if it is a part of a character, as OpenAI writes it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
