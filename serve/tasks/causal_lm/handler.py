"""The handler of a language model: renders a conversation as a prompt and generates the answer."""

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import prometheus_client

from jobs.errors import DataError, DeployError
from jobs.training.data import chat_template
from serve.config import ReplicaConfig
from serve.http.errors import HttpError
from serve.tasks.causal_lm.answer import Piece, Settings
from serve.tasks.causal_lm.generator import Generator
from serve.tasks.causal_lm.schemas import (
    COMPLETIONS_PATH,
    PATH,
    SEEDS,
    ChatInfo,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
)
from serve.tasks.generating.handler import GenerationHandler


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
        self._first_piece = prometheus_client.Histogram(
            "first_piece_seconds",
            "Time from the complete request body to the first piece of the answer.",
            registry=self.metrics.registry,
            namespace="winnow_serve",
        )

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

    def prompt(self, request: ChatRequest) -> list[int]:
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
            try:
                found = [message.model_dump() for message in messages]
                text = chat_template.write(found, tokenizer, ask=True)
            except DataError as error:
                raise HttpError(422, "invalid_request", str(error), param="messages") from None
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._within_limit(ids, "messages", "conversation")

    def beginning(self, request: CompletionRequest) -> list[int]:
        """Returns the tokens of a text to continue.

        Raises:
            HttpError: 422 if it has no tokens, or more than the model's limit.
        """
        return self._within_limit(self._raw(request.prompt), "prompt", "prompt")

    def _raw(self, text: str) -> list[int]:
        """Returns the tokens of a text as training saw it, without an end token."""
        tokenizer = self.generator.tokenizer
        return chat_template.goes_on(tokenizer(text)["input_ids"], tokenizer)

    def _within_limit(self, ids: Sequence[int], param: str, what: str) -> list[int]:
        if not 0 < len(ids) < self.longest:
            message = f"the {what} has {len(ids)} tokens; the limit is 1 to {self.longest - 1}"
            raise HttpError(422, "too_long", message, param=param)
        return list(ids)

    async def write(
        self, ids: Sequence[int], request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Piece]:
        """Yields the answer in pieces while it is generated.

        Raises:
            HttpError: 503 if the queue is full, 504 if the generation does not start in time.
        """
        room = self.longest - len(ids)
        settings = Settings(
            most_tokens=min(request.answer_tokens, room),
            temperature=request.heat,
            top_p=request.top_p,
            stops=request.stops,
            seed=None if request.seed is None else request.seed % SEEDS,
        )
        begin = time.perf_counter()
        pieces = self.generator.write(list(ids), settings, min(timeout_s, self.config.timeout_s))
        with self.counting() as counted:
            counted.read = len(ids)
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if not counted.written:
                        self._first_piece.observe(time.perf_counter() - begin)
                    counted.written = piece.tokens
                    yield piece


def _only_text(messages: Sequence[Message]) -> str:
    """Returns the prompt for a model without a chat template, which was trained on raw prompts.

    Raises:
        HttpError: 422 if the conversation has more than one message.
    """
    if len(messages) != 1:
        message = "this model has no chat template: send one message, the prompt as it was trained"
        raise HttpError(422, "invalid_request", message, param="messages")
    return messages[0].content
