"""Writes answers as messages of OpenAI's chat completions."""

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from serve.tasks.causal_lm.answer import Piece, TokenLogprob
from serve.tasks.causal_lm.generation_request import Usage
from serve.tasks.causal_lm.messages import FunctionCall, ToolCall
from serve.tasks.causal_lm.schemas import (
    AnswerMessage,
    CallPiece,
    ChatFinish,
    ChatPiece,
    ChatResponse,
    Choice,
    Delta,
    Likely,
    Logprobs,
    PieceChoice,
    Scored,
)
from serve.tasks.causal_lm.tool_format import Call, CallReader, ToolFormat
from serve.tasks.causal_lm.vocabulary import Vocabulary

IDENTITY_LENGTH = 9
"""Characters of a call's identity; the chat templates of some models refuse other lengths."""


class ChatReply:
    """Writes answers to one conversation."""

    def __init__(
        self,
        model: str,
        *,
        count: int,
        form: ToolFormat | None,
        names: Sequence[str],
        tokens: Vocabulary | None,
    ) -> None:
        """Args: the model's name, and the number of answers.

        `form` has the calls of tools, whose `names` are known, where answers may have any;
        `tokens` are the model's where their log-probabilities are asked for.
        """
        identity, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        self._common: Any = {"id": identity, "created": created, "model": model}
        self._count, self._form, self._names, self._tokens = count, form, names, tokens
        self._readers = defaultdict[int, CallReader | None](self._reader)

    def begin(self) -> Iterator[ChatPiece]:
        """Yields who speaks, for each answer."""
        for index in range(self._count):
            yield self._event(index, Delta(role="assistant", content=""))

    def parts(self, index: int, piece: Piece) -> Iterator[ChatPiece]:
        """Yields the events of a piece: words, calls of tools at the end, and why it ended."""
        reader, words, calls = self._readers[index], piece.text, list[Call]()
        if reader is not None:
            words = reader.feed(piece.text)
            if piece.finish:
                rest, calls = reader.end()
                words += rest
        logprobs = self._logprobs(piece.logprobs)
        if words or piece.logprobs:
            yield self._event(index, Delta(content=words), logprobs=logprobs)
        for number, call in enumerate(calls):
            whole = CallPiece(index=number, **_written(call).model_dump())
            yield self._event(index, Delta(tool_calls=[whole]))
        if piece.finish:
            yield self._event(index, Delta(), "tool_calls" if calls else piece.finish)

    def used(self, usage: Usage) -> ChatPiece:
        """Returns the event of the tokens that were used."""
        return ChatPiece(**self._common, choices=[], usage=usage)

    def whole(self, answers: Sequence[Piece], usage: Usage) -> ChatResponse:
        """Returns the message of whole answers."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return ChatResponse(**self._common, choices=choices, usage=usage)

    def _reader(self) -> CallReader | None:
        return None if self._form is None else CallReader(self._form, self._names)

    def _choice(self, index: int, answer: Piece) -> Choice:
        assert answer.finish is not None
        words, calls = answer.text, list[Call]()
        if self._form is not None:
            words, calls = self._form.read(words, self._names)
        message = AnswerMessage(content=words)
        if calls:
            written = [_written(call) for call in calls]
            message = AnswerMessage(content=words or None, tool_calls=written)
        return Choice(
            index=index,
            message=message,
            finish_reason="tool_calls" if calls else answer.finish,
            logprobs=self._logprobs(answer.logprobs),
        )

    def _event(
        self,
        index: int,
        delta: Delta,
        finish: ChatFinish | None = None,
        logprobs: Logprobs | None = None,
    ) -> ChatPiece:
        choice = PieceChoice(index=index, delta=delta, finish_reason=finish, logprobs=logprobs)
        return ChatPiece(**self._common, choices=[choice])

    def _logprobs(self, found: Sequence[TokenLogprob]) -> Logprobs | None:
        if self._tokens is None:
            return None
        return Logprobs(content=[_scored(each, self._tokens) for each in found])


def _scored(found: TokenLogprob, tokens: Vocabulary) -> Scored:
    def fields(token: int, logprob: float) -> dict[str, Any]:
        own = tokens.bytes_of(token)
        return {"token": tokens.text_of(token), "logprob": logprob, "bytes": list(own)}

    likeliest = [Likely(**fields(*each)) for each in found.likeliest]
    return Scored(**fields(found.token, found.logprob), top_logprobs=likeliest)


def _written(call: Call) -> ToolCall:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = FunctionCall(name=call.name, arguments=arguments)
    return ToolCall(id=uuid.uuid4().hex[:IDENTITY_LENGTH], function=function)
