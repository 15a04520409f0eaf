"""Generates answers with a language model on its own thread; answers are written together."""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Sequence

import torch

from jobs.errors import first_line
from serve.batching.client import DeadlineError
from serve.tasks.causal_lm import decoding, one_by_one, sampling
from serve.tasks.causal_lm.answer import Piece, Settings, Writer
from serve.tasks.causal_lm.decoding import SLACK, Decoding
from serve.tasks.causal_lm.sampling import Sampler
from serve.tasks.causal_lm.vocabulary import Grammar, Vocabulary
from serve.tasks.causal_lm.writing import Row, WritingJob, add_tokens
from serve.tasks.generating.thread import GenerationThread

LOG = logging.getLogger(__name__)
UNBOUNDED = 2**31
"""Positions of models that need none."""
READ_AT_ONCE = 2048
"""Tokens of prompts that are read between two tokens of the others, unless one prompt has more."""
FADING = 0.99
"""Weight that a step's tokens and time keep in the speed after another step."""


class Generator(GenerationThread[WritingJob]):
    """A language model on its own thread.

    Answers are written together, if the model's rows are proven not to change each other, else one
    after the other by transformers.
    """

    batch_rows: int = 64
    """Most answers that are written together."""
    cache_use: float = 0.0
    """Share of the cache that the answers which are being written may fill."""

    @property
    def positions(self) -> int:
        """Most tokens that the model has positions for."""
        config = self._model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or UNBOUNDED)

    @property
    def vocabulary_size(self) -> int:
        """Number of the model's logits."""
        return int(self._model.config.get_text_config().vocab_size)

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

    async def write(
        self, ids: list[int], settings: Settings, timeout_s: float
    ) -> AsyncGenerator[Piece]:
        """Yields an answer in pieces while it is generated; the last piece has a finish.

        The generation ends when the caller stops iterating.

        Args:
            ids: Token ids of the prompt.
            settings: Sampling parameters.
            timeout_s: Longest time until the answer ends.

        Raises:
            QueueFullError: if the queued tokens exceed `queue_tokens`.
            DeadlineError: at the timeout, if the generation has not started.
            GrammarError: if the grammar becomes too complex.
        """
        sampler = self._sampler(settings)
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece | Exception]()

        def on_piece(piece: Piece | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        job = WritingJob(time.monotonic() + timeout_s, ids, settings, sampler, on_piece)
        self._enqueue(job)
        try:
            while True:
                piece = await _next(pieces, job)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.finish:
                    return
        finally:
            job.is_cancelled.set()

    @torch.inference_mode()
    def _run(self) -> None:
        reason = sampling.unusual(self._model.generation_config)
        try:
            reason = reason or decoding.reason_for_one_by_one(self._model)
            self._room = 0 if reason else decoding.room(self._model)
        except Exception as error:  # noqa: BLE001 - or no request would ever be answered
            reason = first_line(error)
        if reason:
            LOG.warning("answers are written one after the other: %s", reason)
            super()._run()
            return
        waiting, rows = collections.deque[WritingJob | None](), list[Row]()
        batch, self._tokens, self._seconds = Decoding(self._model), 0.0, 0.0
        while True:
            self._take(waiting, waits=not rows)
            begin = time.monotonic()
            joining = self._joining(waiting, rows)
            if waiting and waiting[0] is None and not rows and not joining:
                return
            try:
                tokens = self._step(batch, rows) + self._join(batch, rows, joining)
                self._leave(batch, rows)
            except Exception as error:  # noqa: BLE001 - the cache may be broken: all of them end
                for job in (*(row.job for row in rows), *joining):
                    self._end(job, error)
                rows, batch = [], Decoding(self._model)
                continue
            self._observe(tokens, time.monotonic() - begin)
            longest = max((row.job.most_tokens + SLACK for row in rows), default=0)
            self.cache_use = len(rows) * longest / self._room

    def _take(self, waiting: "collections.deque[WritingJob | None]", *, waits: bool = True) -> None:
        """Moves all queued jobs into `waiting`; `waits` for one if there is none."""
        if waits or waiting or not self._jobs.empty():
            super()._take(waiting)

    def _joining(
        self, waiting: "collections.deque[WritingJob | None]", rows: Sequence[Row]
    ) -> list[WritingJob]:
        """Takes the next jobs that fit out of `waiting`; ends those that are over."""
        found: list[WritingJob] = []
        longest = max((row.job.most_tokens for row in rows), default=0)
        while waiting and (job := waiting[0]) is not None:
            if job.is_over:
                self._end(job, None if job.is_cancelled.is_set() else DeadlineError())
                waiting.popleft()
                continue
            longest = max(longest, job.most_tokens)
            count = len(rows) + len(found) + 1
            read = max(len(each.ids) for each in (*found, job)) * (len(found) + 1)
            fits = count <= self.batch_rows and count * (longest + SLACK) <= self._room
            if (rows or found) and not (fits and (not found or read <= READ_AT_ONCE)):
                break
            job.has_begun = True
            found.append(job)
            waiting.popleft()
        return found

    def _join(self, batch: Decoding, rows: list[Row], jobs: Sequence[WritingJob]) -> int:
        """Reads prompts and adds their rows with a first token; returns the tokens."""
        if not jobs:
            return 0
        try:
            logits = batch.join([job.ids for job in jobs])
        except Exception as error:  # noqa: BLE001 - given to these clients; the others continue
            for job in jobs:
                self._end(job, error)
            return 0
        added = [Row(job, self._writer(job)) for job in jobs]
        rows += added
        add_tokens(added, logits)
        return sum(len(job.ids) + 1 for job in jobs)

    def _step(self, batch: Decoding, rows: Sequence[Row]) -> int:
        """Adds a token to each row; returns the tokens."""
        if rows:
            add_tokens(rows, batch.step([row.writer.ids[-1] for row in rows]))
        return len(rows)

    def _leave(self, batch: Decoding, rows: list[Row]) -> None:
        """Takes the answers that have ended out of the batch."""
        have_ended = [row.has_ended for row in rows]  # asked once: time goes on
        if not any(have_ended):
            return
        for row, has_ended in zip(rows, have_ended, strict=True):
            if has_ended:
                self._end(row.job, row.failure)
                if row.failure is None:
                    row.writer.finish()
        places = [place for place, has_ended in enumerate(have_ended) if not has_ended]
        rows[:] = [rows[place] for place in places]
        batch.keep(places)

    def _sampler(self, settings: Settings) -> Sampler:
        matcher = None if settings.grammar is None else settings.grammar.begin()
        model = self._model
        return Sampler(
            settings, model.generation_config, model.device, ends=self._ends, matcher=matcher
        )

    def _writer(self, job: WritingJob) -> Writer:
        return Writer(self.tokenizer, job.settings, self._ends, job.on_piece)

    def _end(self, job: WritingJob, error: Exception | None = None) -> None:
        """Counts a job no more, and then gives its client the error, if there is one; once."""
        with self._lock:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        if error is not None:
            job.fail(error)

    def _observe(self, tokens: int, seconds: float) -> None:
        """Takes a step into the speed that queued requests are told."""
        self._tokens = FADING * self._tokens + tokens
        self._seconds = FADING * self._seconds + seconds
        if self._tokens:
            self._tokens_per_s = self._tokens / max(1e-6, self._seconds)

    @torch.inference_mode()
    def _answer(self, jobs: list[WritingJob]) -> int:
        """Lets transformers write one answer, of a model whose rows cannot share a batch."""
        (job,) = jobs
        if time.monotonic() >= job.deadline:
            raise DeadlineError
        job.has_begun = True
        writer = self._writer(job)
        one_by_one.write(
            self._model, job.ids, job.settings, job.sampler, writer, lambda: job.is_over
        )
        writer.finish()
        return len(job.ids) + len(writer.ids)


async def _next(pieces: asyncio.Queue[Piece | Exception], job: WritingJob) -> Piece | Exception:
    """Returns the next piece; an error at the deadline of a job that still waits then."""
    if job.has_begun:
        return await pieces.get()
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(pieces.get(), job.deadline - time.monotonic())
    return await pieces.get() if job.has_begun else DeadlineError()
