"""The handler of a language model: its limits, and the answers that it writes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.errors import DeployError, first_line
from jobs.spec.serve import AdaptersSpec
from serve.config import ReplicaConfig
from serve.engines.generating.adapters import Adapted, UnsuitableAdapterError
from serve.engines.generating.token_batch import CacheTooSmallError
from serve.http.errors import HttpError
from serve.tasks.causal_lm import adapters, engines
from serve.tasks.causal_lm.adapters import AdapterLibrary, Named
from serve.tasks.causal_lm.answer import Piece, Settings
from serve.tasks.causal_lm.choices import merged
from serve.tasks.causal_lm.completion_schemas import COMPLETIONS_PATH
from serve.tasks.causal_lm.generation_request import SEEDS, GenerationRequest
from serve.tasks.causal_lm.prompts import Prompts
from serve.tasks.causal_lm.schemas import PATH, ChatInfo
from serve.tasks.causal_lm.text_engine import TextEngine, UnsupportedSettingError
from serve.tasks.causal_lm.token_times import TokenTimes
from serve.tasks.causal_lm.vocabulary import (
    GrammarError,
    UnusableVocabularyError,
    Vocabulary,
)
from serve.tasks.generating.handler import GenerationHandler


class ChatHandler(GenerationHandler[TextEngine]):
    """Answers conversations with a language model."""

    path, other_paths, takes_adapters = PATH, (COMPLETIONS_PATH,), True
    _library: AdapterLibrary | None = None
    """For a version that is an adapter."""

    def __init__(self, config: ReplicaConfig) -> None:
        """Reads the model and starts its generator; raises CheckpointError or DeployError."""
        super().__init__(config)
        try:
            self.longest = self._longest()
            """Most tokens of a conversation with its answer."""
        except DeployError:
            self.generator.close()
            raise
        self.prompts = Prompts(self.generator, self.longest)
        self._times = TokenTimes(self.metrics.registry, self.generator)
        own = config.version
        self._own = Named(own.name, own.id, self._library.own if self._library else None)

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

    def start(self, folder: Path) -> TextEngine:
        """Returns the engine of the language model, or of the adapter, in a folder.

        Raises:
            DeployError: if it cannot be served.
        """
        own = self.config
        if not adapters.is_adapter(folder):
            return engines.start(own, folder, self.precision)
        limits = own.adapters or AdaptersSpec()
        self._library = library = AdapterLibrary(own.version, limits.models, 2 * limits.slots)
        rank = max(limits.rank or 0, library.own.rank)
        adapted = Adapted(library.base, library.own, limits.slots, rank)
        try:
            return engines.start(own, folder, self.precision, adapted)
        except OSError as error:  # transformers', of a base that is not there
            message = f"the base of {own.version.name} {own.version.id} cannot be read"
            raise DeployError(f"{message}: {first_line(error)}") from None
        except UnsuitableAdapterError as error:
            message = f"{own.version.name} {own.version.id} {error}"
            raise DeployError(f"{message}; train it with model.adapter.merge: true") from None

    @property
    def info(self) -> ChatInfo:
        """The model that this endpoint serves."""
        version = self.config.version
        return ChatInfo(
            task=version.task,
            name=version.name,
            version=version.id,
            metrics=version.metrics,
            engine=f"{self.generator.engine}-{self.precision}",
            max_length=self.longest,
        )

    async def named(self, model: str | None, timeout_s: float) -> Named:
        """Returns the version that a request names.

        Raises:
            HttpError: 404 if it is no version that this replica can answer with, 503 if the storage
                with adapters does not answer, 504 if it does not within the timeout.
        """
        own = self._own
        if model in (None, own.model):
            return own
        if model == f"{own.model}@{own.version}":
            return replace(own, model=model)
        if self._library is None or self.generator.slots is None:
            raise HttpError(404, "not_found", f"this endpoint serves {own.model}", param="model")
        timeout_s = min(timeout_s, self.config.timeout_s)
        return await self._library.named(model, self.generator.slots.check, timeout_s)

    @property
    def model_names(self) -> list[str]:
        """Names that requests may give: the model's, and those of adapters that were asked for."""
        return [self._own.model, *(self._library.names if self._library else ())]

    async def vocabulary(self, param: str) -> Vocabulary:
        """The model's tokens as bytes, for what a field of the request asks for.

        Raises:
            HttpError: 422 if they cannot be told.
        """
        try:
            return await asyncio.to_thread(lambda: self.generator.vocabulary)
        except UnusableVocabularyError as error:
            message = f"this model cannot do it: {error}; leave it out"
            raise HttpError(422, "invalid_request", f"{param}: {message}", param=param) from None

    async def write(
        self,
        prompts: Sequence[list[int]],
        request: GenerationRequest,
        timeout_s: float,
        *,
        named: Named,
        grammar: str | None = None,
        shows_special: bool = False,
    ) -> AsyncGenerator[tuple[int, Piece]]:
        """Yields the answers in pieces while they are generated, each with its answer's index.

        Each prompt has `n` answers, whose indices follow each other.

        Raises:
            HttpError: 503 if the queue is full, 504 if the generation does not start in time, 422
                if the grammar is wrong or too complex, the model lacks a token, or the cache of
                this replica could not hold the text alone.
        """
        begin, timeout_s = time.perf_counter(), min(timeout_s, self.config.timeout_s)
        self.prompts.check_known(request.logit_bias, "logit_bias")
        wanted = [
            (ids, settings)
            for ids in prompts
            for settings in self._settings(ids, request, shows_special=shows_special)
        ]
        tokens = sum(len(ids) + settings.most_tokens for ids, settings in wanted)
        self._check_size(len(wanted), tokens)
        param = "tools" if shows_special else "response_format"
        try:
            with self.counting() as counted:
                counted.read = sum(map(len, prompts))
                self.generator.check_room(tokens)
                if grammar is not None:
                    compiled = await self.generator.grammar(grammar, timeout_s)
                    wanted = [(ids, replace(each, grammar=compiled)) for ids, each in wanted]
                    timeout_s -= time.perf_counter() - begin
                answers = [self.generator.write(*each, timeout_s, named.adapter) for each in wanted]
                async with contextlib.aclosing(self._times.seen(merged(answers), begin)) as pieces:
                    written = dict[int, int]()
                    async for index, piece in pieces:
                        written[index] = piece.tokens
                        counted.written = sum(written.values())
                        yield index, piece
        except CacheTooSmallError as error:
            raise HttpError(422, "too_long", f"{error}; ask for fewer tokens") from None
        except UnsupportedSettingError as error:
            wrong = error.param or param
            raise HttpError(422, "invalid_request", f"{wrong}: {error}", param=wrong) from None
        except (GrammarError, UnusableVocabularyError) as error:
            message = f"the answer cannot be held to the schema: {error}"
            raise HttpError(422, "invalid_request", message, param=param) from None

    def _check_size(self, answers: int, tokens: int) -> None:
        """Raises HttpError 422 if the answers to one request could never wait together."""
        most = self.config.queue_tokens
        if answers > 1 and tokens > most:
            message = (
                f"{answers} answers may take {tokens:,} tokens with their prompts; this endpoint's"
                f" queue takes {most:,}: ask for fewer answers, or for shorter ones"
            )
            raise HttpError(422, "too_long", message, param="n")

    def _settings(
        self, ids: Sequence[int], request: GenerationRequest, *, shows_special: bool
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
            shows_special=shows_special,
        )
        seed = request.seed
        seeds = [None if seed is None else (seed + index) % SEEDS for index in range(request.n)]
        return [replace(first, seed=each) for each in seeds]
