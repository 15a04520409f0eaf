"""Renders requests as prompts of a language model, and tells the form of their answers."""

import asyncio
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.errors import DataError
from jobs.training.data import chat_template, conversations
from serve.http.errors import HttpError
from serve.tasks.causal_lm import tool_format
from serve.tasks.causal_lm.completion_schemas import CompletionRequest
from serve.tasks.causal_lm.messages import Message, NamedTool, Tool
from serve.tasks.causal_lm.schemas import ChatRequest, JsonFormat, SchemaFormat, TextFormat
from serve.tasks.causal_lm.text_engine import TextEngine
from serve.tasks.causal_lm.tool_format import ToolFormat, UnknownFormatError
from serve.tasks.causal_lm.vocabulary import json_grammar, lark_grammar

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
"""JSON schema of the arguments of a tool without any."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a conversation asks of the model."""

    ids: list[int]
    """Tokens of the prompt."""
    grammar: str | None = None
    """Grammar of the answer."""
    form: ToolFormat | None = None
    """How the answer calls tools, if it may."""
    shows_special: bool = False
    """Whether special tokens tell calls of tools."""


class Prompts:
    """Prompts for one model."""

    def __init__(self, generator: TextEngine, longest: int) -> None:
        """Args: the model's generator, and most tokens of a prompt with its answer."""
        self._generator, self._longest = generator, longest

    async def asked(self, request: ChatRequest) -> Asked:
        """Returns the prompt of a conversation, and the form of its answer.

        Raises:
            HttpError: 422 as `prompt` does, or if the model cannot call tools.
        """
        if not request.calls_tools:
            ids = await asyncio.to_thread(self.prompt, request)
            return Asked(ids, _json_of(request.response_format))
        try:
            form = await asyncio.to_thread(lambda: self._tool_format)
        except UnknownFormatError as error:
            message = f"this model cannot call tools: {error}; leave them out"
            raise HttpError(422, "invalid_request", message, param="tools") from None
        special = self._generator.special_tokens
        shows_special = any(token in form.mark for token in special)
        grammar, chosen = None, request.tool_choice
        if chosen != "auto":
            must = chosen.function.name if isinstance(chosen, NamedTool) else None
            tools = {
                tool.function.name: tool.function.parameters or NO_ARGUMENTS
                for tool in request.tools
                if must in (None, tool.function.name)
            }
            one = must is not None or not request.parallel_tool_calls
            grammar = lark_grammar(form.rules(tools, special, one=one))
        ids = await asyncio.to_thread(self.prompt, request, request.tools)
        return Asked(ids, grammar, form, shows_special)

    @functools.cached_property
    def _tool_format(self) -> ToolFormat:
        return tool_format.learned(self._generator.tokenizer, self._generator.end_texts)

    def prompt(self, request: ChatRequest, tools: Sequence[Tool] = ()) -> list[int]:
        """Renders a conversation as token ids.

        Raises:
            HttpError: 422 if the last message is the assistant's, the chat template refuses the
                conversation, or it has more tokens than the model's limit.
        """
        if request.messages[-1].role == "assistant":
            message = "the last message must be from the user or the system, not the assistant"
            raise HttpError(422, "invalid_request", message, param="messages")
        tokenizer, messages = self._generator.tokenizer, request.messages
        if tokenizer.chat_template is None:
            ids = self.raw(_only_text(messages))
        else:
            given = [message.model_dump(exclude_none=True) for message in messages]
            known = [tool.model_dump(exclude_none=True) for tool in tools] or None
            try:
                found = conversations.messages_of(given) or []
                text = chat_template.write(found, tokenizer, ask=True, tools=known)
                text.encode()
            except UnicodeEncodeError:
                message = "messages: the arguments of a call have a half of a surrogate pair"
                raise HttpError(422, "invalid_request", message, param="messages") from None
            except RecursionError:
                message = "messages: the arguments of a call are nested too deep"
                raise HttpError(422, "invalid_request", message, param="messages") from None
            except DataError as error:
                raise HttpError(422, "invalid_request", str(error), param="messages") from None
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.within_limit(ids, "messages", "conversation")

    async def beginnings(self, request: CompletionRequest) -> list[list[int]]:
        """Returns the tokens of each text to continue.

        Raises:
            HttpError: 422 if one has no tokens, more than the model's limit, or unknown ones.
        """
        return await asyncio.to_thread(lambda: [*map(self._beginning, request.prompts)])

    def _beginning(self, prompt: str | list[int]) -> list[int]:
        ids = self.raw(prompt) if isinstance(prompt, str) else prompt
        self.check_known(ids, "prompt")
        return self.within_limit(ids, "prompt", "prompt")

    def check_known(self, tokens: Iterable[int], param: str) -> None:
        """Raises HttpError 422 if a field of a request has tokens that the model lacks."""
        size = self._generator.vocabulary_size
        if any(token >= size for token in tokens):
            message = f"{param}: the model has the tokens 0 to {size - 1}"
            raise HttpError(422, "invalid_request", message, param=param)

    def raw(self, text: str) -> list[int]:
        """Returns the tokens of a text as training saw it, without an end token."""
        tokenizer = self._generator.tokenizer
        return chat_template.goes_on(tokenizer(text)["input_ids"], tokenizer)

    def within_limit(self, ids: Sequence[int], param: str, what: str) -> list[int]:
        """Returns the same tokens; raises HttpError 422 if there are none, or too many."""
        if not 0 < len(ids) < self._longest:
            message = f"the {what} has {len(ids)} tokens; the limit is 1 to {self._longest - 1}"
            raise HttpError(422, "too_long", message, param=param)
        return list(ids)


def _json_of(wanted: TextFormat | JsonFormat | SchemaFormat) -> str | None:
    """Returns the grammar of an answer's form; None for any text."""
    if isinstance(wanted, TextFormat):
        return None
    if isinstance(wanted, JsonFormat):
        return json_grammar({"type": "object"})
    return json_grammar(wanted.json_schema.schema_)


def _only_text(messages: Sequence[Message]) -> str:
    """Returns the prompt for a model without a chat template, which was trained on raw prompts.

    Raises:
        HttpError: 422 if the conversation has more than one message.
    """
    if len(messages) != 1:
        message = "this model has no chat template: send one message, the prompt as it was trained"
        raise HttpError(422, "invalid_request", message, param="messages")
    return messages[0].content or ""
