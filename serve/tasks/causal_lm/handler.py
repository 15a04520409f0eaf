"""The handler of a language model: renders a conversation as a prompt and generates the answer."""

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import prometheus_client

from jobs.errors import DeployError
from serve.batching.client import DeadlineError, Load, QueueFullError
from serve.config import ReplicaConfig
from serve.http.errors import HttpError
from serve.http.handler import Handler, error_of
from serve.http.metrics import Metrics
from serve.tasks.causal_lm.generator import Generator, Piece, Settings
from serve.tasks.causal_lm.schemas import (
    PATH,
    ChatInfo,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
)
from serve.version import fetched


class ChatHandler(Handler):
    """Answers conversations with a language model."""

    path = PATH

    def __init__(self, config: ReplicaConfig) -> None:
        """Reads the model and starts its generator.

        Raises:
            CheckpointError: if a file of the model is missing or was altered.
            DeployError: if the version is an adapter without its base model.
        """
        version = fetched(config.version)
        folder = Path(version.path)
        if not (folder / "config.json").exists():
            raise DeployError(
                f"{version.name} {version.id} is an adapter without its base model; train it with"
                " model.adapter.merge: true to serve it"
            )
        config = replace(config, version=version)
        super().__init__(config, Metrics(version.name, version.id))
        self.precision = config.precision or ("bf16" if config.device == "cuda" else "fp32")
        self.generator = Generator(
            folder, config.device, self.precision, config.threads, config.queue_tokens
        )
        fixed: dict[str, Any] = {"registry": self.metrics.registry, "namespace": "winnow_serve"}
        self._prompt_tokens = prometheus_client.Counter(
            "prompt_tokens", "Tokens of prompts.", **fixed
        )
        self._answer_tokens = prometheus_client.Counter(
            "answer_tokens", "Tokens of answers.", **fixed
        )
        self._first_piece = prometheus_client.Histogram(
            "first_piece_seconds",
            "Time from the complete request body to the first piece of the answer.",
            **fixed,
        )

    @property
    def load(self) -> Load:
        """The requests that wait now."""
        return self.generator.load

    @property
    def info(self) -> ChatInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return ChatInfo(
            name=version.name,
            version=version.id,
            metrics=version.metrics,
            engine=f"torch-{self.precision}",
            max_length=version.max_length,
        )

    def adjust(self, changes: Mapping[str, Any]) -> None:
        """Changes fields named in `ADJUSTABLE`, from the next request on."""
        super().adjust(changes)
        self.generator.queue_tokens = self.config.queue_tokens

    def prompt(self, request: ChatRequest) -> list[int]:
        """Renders a conversation as token ids.

        Raises:
            HttpError: 422 if the last message is the assistant's, the chat template refuses the
                conversation, or it has more tokens than the model's limit.
        """
        if request.messages[-1].role == "assistant":
            message = "the last message must be from the user or the system, not the assistant"
            raise HttpError(422, "invalid_request", message)
        tokenizer, messages = self.generator.tokenizer, request.messages
        if tokenizer.chat_template is None:
            ids = self._raw(_only_text(messages))
        else:
            try:
                text = tokenizer.apply_chat_template(
                    [message.model_dump() for message in messages],
                    tokenize=False,
                    add_generation_prompt=True,
                )
            except (jinja2.TemplateError, TypeError, ValueError) as error:
                message = f"the model's chat template refuses the conversation: {error}"
                raise HttpError(422, "invalid_request", message) from None
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._within_limit(ids, "conversation")

    def beginning(self, request: CompletionRequest) -> list[int]:
        """Returns the tokens of a text to continue.

        Raises:
            HttpError: 422 if it has no tokens, or more than the model's limit.
        """
        return self._within_limit(self._raw(request.prompt), "prompt")

    def _raw(self, text: str) -> list[int]:
        """Returns the tokens of a text as training saw it, without an end token."""
        tokenizer = self.generator.tokenizer
        ids: list[int] = tokenizer(text)["input_ids"]
        return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids

    def _within_limit(self, ids: Sequence[int], what: str) -> list[int]:
        longest = self.config.version.max_length
        if not 0 < len(ids) < longest:
            message = f"the {what} has {len(ids)} tokens; the limit is 1 to {longest - 1}"
            raise HttpError(422, "too_long", message)
        return list(ids)

    async def write(
        self, ids: Sequence[int], request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Piece]:
        """Yields the answer in pieces while it is generated.

        Raises:
            HttpError: 503 if the queue is full, 504 if the generation does not start in time.
        """
        room = self.config.version.max_length - len(ids)
        settings = Settings(
            most_tokens=min(request.answer_tokens, room),
            temperature=request.temperature,
            top_p=request.top_p,
            stops=request.stops,
            seed=request.seed,
        )
        begin, written = time.perf_counter(), 0
        pieces = self.generator.write(list(ids), settings, min(timeout_s, self.config.timeout_s))
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if not written:
                        self._first_piece.observe(time.perf_counter() - begin)
                    written = piece.tokens
                    yield piece
        except (QueueFullError, DeadlineError) as error:
            raise error_of(error) from None
        finally:
            if written:
                self._prompt_tokens.inc(len(ids))
                self._answer_tokens.inc(written)
                self.metrics.latency.observe(time.perf_counter() - begin)


def _only_text(messages: Sequence[Message]) -> str:
    """Returns the prompt for a model without a chat template, which was trained on raw prompts.

    Raises:
        HttpError: 422 if the conversation has more than one message.
    """
    if len(messages) != 1:
        message = "this model has no chat template: send one message, the prompt as it was trained"
        raise HttpError(422, "invalid_request", message)
    return messages[0].content
