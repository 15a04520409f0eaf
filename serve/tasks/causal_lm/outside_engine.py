"""What engines share that write tokens in their own way: a queue, and texts from tokens.

An engine gives each job the tokens that follow its prompt; stop texts, the end of the answer and
its text are decided here, as for our own batches.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import transformers

from jobs.errors import DeployError
from serve.batching.client import DeadlineError, Load, QueueFullError
from serve.engines.generating.adapters import Adapter, AdapterSlots
from serve.tasks.causal_lm import sampling
from serve.tasks.causal_lm.answer import Piece, Settings, TokenLogprob, Writer
from serve.tasks.causal_lm.post import Pieces, Post, arriving
from serve.tasks.causal_lm.text_engine import ModelTexts
from serve.tasks.generating.thread import Job

FADING = 0.99
"""Weight that earlier tokens and their time keep in the speed after each step."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine may take."""

    longest: int
    """Most tokens of a conversation with its answer."""
    batch_rows: int = 64
    """Most answers that are written together."""
    queue_tokens: int = 2**18
    """Most tokens that wait."""


@dataclass(slots=True, eq=False)
class OutsideJob(Job):
    """One answer that an engine writes."""

    ids: list[int]
    settings: Settings
    writer: Writer
    on_piece: Callable[[Piece | Exception], None]
    has_begun: bool = field(default=False, init=False)
    """Whether it waits no more."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt, and most tokens of the answer."""
        return len(self.ids) + self.settings.most_tokens

    @property
    def is_finished(self) -> bool:
        """Whether no further token is asked for."""
        return self.is_over or self.writer.has_ended

    def fail(self, error: Exception) -> None:
        """Raises an error in `write`."""
        self.on_piece(error)

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Adds the next tokens; those behind the answer's end are passed over."""
        self.has_begun = True
        for place, token in enumerate(tokens):
            if self.writer.has_ended:
                return
            self.writer.put(token, logprobs[place] if logprobs else None)


class OutsideEngine(ModelTexts):
    """A language model that somebody else's engine computes. Subclasses have the engine."""

    engine = ""
    slots: AdapterSlots | None = None
    cache_use = 0.0

    def __init__(self, folder: Path, limits: Limits) -> None:
        """Args: the model's folder, and the limits.

        Raises:
            DeployError: if the model's generation config asks for what the engine passes over.
        """
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._read_config = transformers.AutoConfig.from_pretrained(folder)
        self._generation = _generation_config(folder, self._read_config)
        if reason := sampling.unusual(self._generation):
            raise DeployError(
                f"{reason}, which {self.engine} does not do; serve it with serve.engine: torch"
            )
        ends = self._generation.eos_token_id
        given = ends if isinstance(ends, list) else [ends]
        self._ends = frozenset(end for end in given if end is not None)
        self.batch_rows, self.queue_tokens = limits.batch_rows, limits.queue_tokens
        self._longest = limits.longest
        self._waiting, self._lock, self._post = list[OutsideJob](), threading.Lock(), Post()
        self._tokens = self._seconds = 0.0
        self._last = time.monotonic()

    @property
    def _config(self) -> Any:
        return self._read_config

    @property
    def load(self) -> Load:
        """The requests that wait or are being answered."""
        with self._lock:
            jobs = [job for job in self._waiting if not job.is_cancelled.is_set()]
        tokens = sum(job.most_tokens for job in jobs)
        rate = self._tokens / self._seconds if self._tokens and self._seconds else None
        return Load(len(jobs), float(tokens), rate)

    def check_room(self, tokens: int) -> None:
        """Raises QueueFullError if the queued tokens and these would exceed `queue_tokens`."""
        load = self.load
        if load.requests and load.tokens + tokens > self.queue_tokens:
            raise QueueFullError(load.backlog_s)

    def check(self, settings: Settings) -> None:
        """Raises UnsupportedSettingError if the engine does not do what the settings ask for."""

    async def write(
        self,
        ids: list[int],
        settings: Settings,
        timeout_s: float,
        adapter: Adapter | None = None,
    ) -> AsyncGenerator[Piece]:
        """Yields an answer in pieces, as `TextEngine.write` says; it takes no adapter."""
        assert adapter is None
        job, pieces = self._job(ids, settings, timeout_s)
        async with contextlib.aclosing(self._stream(job, pieces)) as stream:
            async for piece in stream:
                yield piece

    async def likeliest(self, ids: Sequence[int], most: int, timeout_s: float) -> list[int]:
        """Returns the likeliest tokens behind a prompt, whether they end an answer or not."""
        settings = Settings(most, temperature=0.0, repetition_penalty=1.0, ignores_end=True)
        job, pieces = self._job([*ids], settings, timeout_s)
        async for _ in self._stream(job, pieces):
            pass
        return job.writer.ids

    def _job(
        self, ids: list[int], settings: Settings, timeout_s: float
    ) -> tuple[OutsideJob, Pieces]:
        """Returns a job for the running event loop, and where its pieces come."""
        self.check(settings)
        loop, pieces = asyncio.get_running_loop(), Pieces()

        def on_piece(piece: Piece | Exception) -> None:
            self._post.send(loop, pieces, piece)

        # a grammar ends the answer itself
        own = replace(settings, ignores_end=settings.ignores_end and settings.grammar is None)
        writer = Writer(self.tokenizer, own, self._ends, on_piece)
        return OutsideJob(time.monotonic() + timeout_s, ids, own, writer, on_piece), pieces

    async def _stream(self, job: OutsideJob, pieces: Pieces) -> AsyncGenerator[Piece]:
        self.check_room(job.most_tokens)
        with self._lock:
            if not self._waiting:
                self._last = time.monotonic()
            self._waiting.append(job)
        try:
            self._begin(job)
            async for piece in arriving(pieces, job):
                yield piece
        finally:
            job.is_cancelled.set()
            self._leave(job)

    def close(self) -> None:
        """Ends the engine."""
        raise NotImplementedError

    def _begin(self, job: OutsideJob) -> None:
        """Gives the engine a job; called in any thread."""
        raise NotImplementedError

    def _leave(self, job: OutsideJob) -> None:
        """Says that nobody waits for a job any more; called in any thread, once for each job."""
        raise NotImplementedError

    def _end(self, job: OutsideJob, error: Exception | None = None) -> None:
        """Counts a job no more, and sends its last piece or an error; called by one thread."""
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        if error is None and not job.has_begun:
            error = DeadlineError()
        if error is None:
            job.writer.finish()
        else:
            job.fail(error)

    def _observe(self, tokens: int) -> None:
        """Takes tokens that were read and written into the speed that queued requests are told."""
        now = time.monotonic()
        self._tokens = FADING * self._tokens + tokens
        self._seconds = FADING * self._seconds + now - self._last
        self._last = now


def _generation_config(folder: Path, config: Any) -> Any:
    if (folder / "generation_config.json").exists():
        return transformers.GenerationConfig.from_pretrained(folder)
    return transformers.GenerationConfig.from_model_config(config)
