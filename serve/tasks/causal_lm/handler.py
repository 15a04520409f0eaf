"""The handler of a language model: renders a conversation as a prompt and generates the answer."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.errors import DataError, DeployError
from jobs.training.data import chat_template, conversations
from serve.config import ReplicaConfig
from serve.http.errors import HttpError
from serve.tasks.causal_lm import tool_format
from serve.tasks.causal_lm.answer import Piece, Settings
from serve.tasks.causal_lm.choices import merged
from serve.tasks.causal_lm.completion_schemas import COMPLETIONS_PATH, CompletionRequest
from serve.tasks.causal_lm.generation_request import SEEDS, GenerationRequest
from serve.tasks.causal_lm.generator import Generator
from serve.tasks.causal_lm.messages import Message, NamedTool, Tool
from serve.tasks.causal_lm.schemas import PATH, ChatInfo, ChatRequest, JsonFormat, SchemaFormat
from serve.tasks.causal_lm.token_times import TokenTimes
from serve.tasks.causal_lm.tool_format import ToolFormat, UnknownFormatError
from serve.tasks.causal_lm.vocabulary import (
    GrammarError,
    UnusableVocabularyError,
    Vocabulary,
    json_grammar,
    lark_grammar,
)
from serve.tasks.generating.handler import GenerationHandler

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


class ChatHandler(GenerationHandler[Generator]):
    """Answers conversations with a language model."""

    path, other_paths = PATH, (COMPLETIONS_PATH,)

    def __init__(self, config: ReplicaConfig) -> None:
        """Reads the model and starts its generator; raises CheckpointError or DeployError."""
        super().__init__(config)
        try:
            self.longest = self._longest()
            """Most tokens of a conversation with its answer."""
        except DeployError:
            self.generator.close()
            raise
        self._times = TokenTimes(self.metrics.registry, self.generator)

    def _longest(self) -> int:
        asked, known = self.config.max_context, self.generator.positions
        if asked is not None and asked > known:
            raise DeployError(
                f"serve.max_context {asked}: {self.config.version.name} has positions for {known}"
                f" tokens; set it to {known} or less"
            )
        return asked or self.config.version.max_length

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Changes fields named in `ADJUSTABLE`, from the next request on."""
        super().adjust(changes)
        self.generator.batch_rows = self.config.batch_rows

    def start(self, folder: Path) -> Generator:
        """Returns the generator of the language model in a folder."""
        own = self.config
        settings = own.device, self.precision, own.threads, own.queue_tokens
        made = Generator(folder, "AutoModelForCausalLM", *settings)
        made.batch_rows = own.batch_rows
        return made

    @property
    def info(self) -> ChatInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return ChatInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            metrics=version.metrics,
            engine=f"torch-{self.precision}",
            max_length=self.longest,
        )

    def check_model(self, name: str | None) -> None:
        """Raises HttpError 404 if a request names another model than this one."""
        own = self.config.version.name
        if name not in (None, own):
            raise HttpError(404, "not_found", f"this endpoint serves {own}", param="model")

    async def asked(self, request: ChatRequest) -> Asked:
        """Returns the prompt of a conversation, and the form of its answer.

        Raises:
            HttpError: 422 as `prompt` does, or if the model cannot call tools.
        """
        wanted = request.response_format
        if isinstance(wanted, SchemaFormat):
            return Asked(self.prompt(request), json_grammar(wanted.json_schema.schema_))
        if isinstance(wanted, JsonFormat):
            return Asked(self.prompt(request), json_grammar({"type": "object"}))
        if not request.calls_tools:
            return Asked(self.prompt(request))
        try:
            form = await asyncio.to_thread(lambda: self._tool_format)
        except UnknownFormatError as error:
            message = f"this model cannot call tools: {error}; leave them out"
            raise HttpError(422, "invalid_request", message, param="tools") from None
        special = self.generator.special_tokens
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
        return Asked(self.prompt(request, request.tools), grammar, form, shows_special)

    @functools.cached_property
    def _tool_format(self) -> ToolFormat:
        return tool_format.learned(self.generator.tokenizer, self.generator.end_texts)

    def prompt(self, request: ChatRequest, tools: Sequence[Tool] = ()) -> list[int]:
        """Renders a conversation as token ids.

        Raises:
            HttpError: 422 if the last message is the assistant's, the chat template refuses the
                conversation, or it has more tokens than the model's limit.
        """
        if request.messages[-1].role == "assistant":
            message = "the last message must be from the user or the system, not the assistant"
            raise HttpError(422, "invalid_request", message, param="messages")
        tokenizer, messages = self.generator.tokenizer, request.messages
        if tokenizer.chat_template is None:
            ids = self._raw(_only_text(messages))
        else:
            given = [message.model_dump(exclude_none=True) for message in messages]
            known = [tool.model_dump(exclude_none=True) for tool in tools] or None
            try:
                found = conversations.messages_of(given) or []
                text = chat_template.write(found, tokenizer, ask=True, tools=known)
            except DataError as error:
                raise HttpError(422, "invalid_request", str(error), param="messages") from None
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._within_limit(ids, "messages", "conversation")

    def beginnings(self, request: CompletionRequest) -> list[list[int]]:
        """Returns the tokens of each text to continue.

        Raises:
            HttpError: 422 if one has no tokens, more than the model's limit, or unknown ones.
        """
        return [self._beginning(prompt) for prompt in request.prompts]

    def _beginning(self, prompt: str | list[int]) -> list[int]:
        ids = self._raw(prompt) if isinstance(prompt, str) else prompt
        self._check_known(ids, "prompt")
        return self._within_limit(ids, "prompt", "prompt")

    def _check_known(self, tokens: Iterable[int], param: str) -> None:
        size = self.generator.vocabulary_size
        if any(token >= size for token in tokens):
            message = f"{param}: the model has the tokens 0 to {size - 1}"
            raise HttpError(422, "invalid_request", message, param=param)

    def _raw(self, text: str) -> list[int]:
        """Returns the tokens of a text as training saw it, without an end token."""
        tokenizer = self.generator.tokenizer
        return chat_template.goes_on(tokenizer(text)["input_ids"], tokenizer)

    def _within_limit(self, ids: Sequence[int], param: str, what: str) -> list[int]:
        if not 0 < len(ids) < self.longest:
            message = f"the {what} has {len(ids)} tokens; the limit is 1 to {self.longest - 1}"
            raise HttpError(422, "too_long", message, param=param)
        return list(ids)

    def vocabulary(self, request: GenerationRequest, param: str) -> Vocabulary:
        """The model's tokens as bytes, for what a field of the request asks for.

        Raises:
            HttpError: 422 if they cannot be told.
        """
        try:
            return self.generator.vocabulary
        except UnusableVocabularyError as error:
            message = f"this model cannot do it: {error}; leave it out"
            raise HttpError(422, "invalid_request", f"{param}: {message}", param=param) from None

    async def write(
        self,
        prompts: Sequence[list[int]],
        request: GenerationRequest,
        timeout_s: float,
        *,
        grammar: str | None = None,
        shows_special: bool = False,
    ) -> AsyncGenerator[tuple[int, Piece]]:
        """Yields the answers in pieces while they are generated, each with its answer's index.

        Each prompt has `n` answers, whose indices follow each other.

        Raises:
            HttpError: 503 if the queue is full, 504 if the generation does not start in time, 422
                if the grammar is wrong or too complex, or the model lacks a token.
        """
        begin, timeout_s = time.perf_counter(), min(timeout_s, self.config.timeout_s)
        self._check_known(request.logit_bias, "logit_bias")
        answers = [
            self.generator.write(ids, settings, timeout_s)
            for ids in prompts
            for settings in self._settings(ids, request, grammar, shows_special=shows_special)
        ]
        param = "tools" if shows_special else "response_format"
        try:
            with self.counting() as counted:
                counted.read = sum(map(len, prompts))
                async with contextlib.aclosing(self._times.seen(merged(answers), begin)) as pieces:
                    written = dict[int, int]()
                    async for index, piece in pieces:
                        written[index] = piece.tokens
                        counted.written = sum(written.values())
                        yield index, piece
        except (GrammarError, UnusableVocabularyError) as error:
            message = f"the answer cannot be held to the schema: {error}"
            raise HttpError(422, "invalid_request", message, param=param) from None

    def _settings(
        self,
        ids: Sequence[int],
        request: GenerationRequest,
        grammar: str | None,
        *,
        shows_special: bool,
    ) -> list[Settings]:
        """Returns the settings of each answer to a prompt."""
        first = Settings(
            most_tokens=min(request.answer_tokens, self.longest - len(ids)),
            temperature=request.heat,
            top_p=request.top_p,
            stops=request.stops,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            repetition_penalty=request.repetition_penalty,
            logit_bias=tuple(sorted(request.logit_bias.items())),
            top_k=request.top_k,
            min_p=request.min_p,
            min_tokens=request.min_tokens,
            ignores_end=request.ignore_eos,
            logprobs=request.likeliest,
            grammar=grammar,
            shows_special=shows_special,
        )
        seed = request.seed
        seeds = [None if seed is None else (seed + index) % SEEDS for index in range(request.n)]
        return [replace(first, seed=each) for each in seeds]


def _only_text(messages: Sequence[Message]) -> str:
    """Returns the prompt for a model without a chat template, which was trained on raw prompts.

    Raises:
        HttpError: 422 if the conversation has more than one message.
    """
    if len(messages) != 1:
        message = "this model has no chat template: send one message, the prompt as it was trained"
        raise HttpError(422, "invalid_request", message, param="messages")
    return messages[0].content or ""
