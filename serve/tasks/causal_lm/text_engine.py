"""What the chat handler asks of an engine that writes answers, and what all such engines share."""

import asyncio
import concurrent.futures
import functools
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from serve.batching.client import DeadlineError, Load
from serve.engines.generating.adapters import Adapter, AdapterSlots
from serve.tasks.causal_lm.answer import Piece, Settings
from serve.tasks.causal_lm.vocabulary import Grammar, Vocabulary

UNBOUNDED = 2**31
"""Positions of models that need none."""


class UnsupportedSettingError(Exception):
    """A setting of an answer that an engine does not do; the message says which.

    `param` is the field of the request; empty for the grammar of an answer, which several ask for.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class TextEngine(Protocol):
    """Writes whole answers of one language model, several at once."""

    tokenizer: Any
    """The model's, of transformers."""
    batch_rows: int
    """Most answers that are written together; may change at any time."""
    queue_tokens: int
    """Most tokens that wait; may change at any time."""
    engine: str
    """What computes the tokens, as an endpoint names it."""
    slots: AdapterSlots | None
    """The adapters in memory, of an engine whose model takes some."""
    cache_use: float
    """Share of the cache that the answers which are being written fill, or may fill."""

    @property
    def positions(self) -> int:
        """Most tokens that the model has positions for."""

    @property
    def vocabulary_size(self) -> int:
        """Number of the model's logits."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """Numbers of the tokenizer's special tokens by their texts."""

    @property
    def end_texts(self) -> list[str]:
        """Texts of the tokens that end an answer."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens as bytes; raises UnusableVocabularyError if they cannot be told."""

    @property
    def load(self) -> Load:
        """The requests that wait or are being answered."""

    def check_room(self, tokens: int) -> None:
        """Raises QueueFullError if the queued tokens and these would exceed `queue_tokens`."""

    async def grammar(self, text: str, timeout_s: float) -> Grammar:
        """Compiles a grammar; raises DeadlineError, GrammarError or UnusableVocabularyError."""

    def write(
        self,
        ids: list[int],
        settings: Settings,
        timeout_s: float,
        adapter: Adapter | None = None,
    ) -> AsyncGenerator[Piece]:
        """Yields an answer in pieces while it is generated; the last piece has a finish.

        The generation ends when the caller stops iterating, or at the timeout.

        Args:
            ids: Token ids of the prompt.
            settings: Sampling parameters.
            timeout_s: Longest time until the answer ends.
            adapter: One that `slots` has checked.

        Raises:
            UnsupportedSettingError: if the engine does not do what the settings ask for.
            QueueFullError: if the queued tokens exceed `queue_tokens`.
            DeadlineError: at the timeout, if the generation has not started.
            GrammarError: if the grammar becomes too complex.
            CacheTooSmallError: if the cache could not hold the text alone.
        """

    def close(self) -> None:
        """Ends the engine's threads and processes."""


class ModelTexts:
    """A language model's tokens and texts, as all engines tell them."""

    tokenizer: Any
    _ends: frozenset[int]

    @property
    def _config(self) -> Any:
        """The model's configuration, of transformers."""
        raise NotImplementedError

    @property
    def positions(self) -> int:
        """Most tokens that the model has positions for."""
        config = self._config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or UNBOUNDED)

    @property
    def vocabulary_size(self) -> int:
        """Number of the model's logits."""
        return int(self._config.get_text_config().vocab_size)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Numbers of the tokenizer's special tokens by their texts."""
        texts = self.tokenizer.all_special_tokens
        return dict(zip(texts, self.tokenizer.all_special_ids, strict=True))

    @property
    def end_texts(self) -> list[str]:
        """Texts of the tokens that end an answer."""
        return [self.tokenizer.decode([end]) for end in sorted(self._ends)]

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens as bytes; the first call takes a second for a large vocabulary.

        Raises:
            UnusableVocabularyError: if they cannot be told.
        """
        return Vocabulary(self.tokenizer, self._ends)

    @functools.cached_property
    def _compiling(self) -> concurrent.futures.ThreadPoolExecutor:
        """The one thread that compiles grammars, so that clients' schemas hold one core at most."""
        return concurrent.futures.ThreadPoolExecutor(1, "grammars")

    async def grammar(self, text: str, timeout_s: float) -> Grammar:
        """Compiles a grammar that `vocabulary` wrote, after those of other requests.

        Raises:
            DeadlineError: if it takes longer than the timeout.
            GrammarError: if it is wrong or too long.
            UnusableVocabularyError: if the tokens cannot be told.
        """
        loop = asyncio.get_running_loop()
        made = loop.run_in_executor(self._compiling, lambda: self.vocabulary.grammar(text))
        try:
            return await asyncio.wait_for(made, timeout_s)
        except TimeoutError:
            raise DeadlineError from None
