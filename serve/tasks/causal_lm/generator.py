"""Generates answers with a language model on its own thread; answers are written together."""

import asyncio
import collections
import logging
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import torch
import transformers

from jobs.errors import first_line
from jobs.training.config import Device
from serve.batching.client import DeadlineError
from serve.engines.generating import adapters, choice
from serve.engines.generating.adapters import Adapted, Adapter, AdapterSlots
from serve.tasks.causal_lm import one_by_one, sampling
from serve.tasks.causal_lm.answer import Piece, Settings, Writer
from serve.tasks.causal_lm.batch_writer import BatchWriter
from serve.tasks.causal_lm.post import Pieces, Post, arriving
from serve.tasks.causal_lm.sampling import Sampler
from serve.tasks.causal_lm.text_engine import ModelTexts
from serve.tasks.causal_lm.writing import Row, WritingJob
from serve.tasks.generating.thread import GenerationThread

LOG = logging.getLogger(__name__)
FADING = 0.99
"""Weight that a step's tokens and time keep in the speed after another step."""


class Generator(ModelTexts, GenerationThread[WritingJob]):
    """A language model on its own thread.

    Answers are written together, if the model's rows are proven not to change each other, else one
    after the other by transformers.
    """

    engine: str = "torch"
    """What computes the tokens."""
    cache_use: float = 0.0
    """Share of the cache that the answers which are being written may fill."""

    def __init__(
        self,
        *args: Any,
        batch_rows: int = 64,
        longest: int | None = None,
        adapted: Adapted | None = None,
        **kwargs: Any,
    ) -> None:
        """Args: those of `GenerationThread`; `batch_rows` answers are written together at most.

        `longest` is the most tokens of a conversation with its answer, by default the positions.
        With `adapted`, the folder holds an adapter of that base.

        Raises:
            UnsuitableAdapterError: if the base cannot take the adapter.
        """
        self._adapted = adapted
        self.slots: AdapterSlots | None = None
        self.batch_rows, self._asked, self._post = batch_rows, longest, Post()
        self._has_chosen = threading.Event()
        super().__init__(*args, **kwargs)
        self._has_chosen.wait()  # compiling and capturing take up to half a minute

    def _loaded(
        self, folder: Path | str, auto_class: str, device: Device, dtype: torch.dtype
    ) -> Any:
        if self._adapted is None:
            return super()._loaded(folder, auto_class, device, dtype)
        model = super()._loaded(self._adapted.base, auto_class, device, dtype)
        if (Path(folder) / transformers.utils.GENERATION_CONFIG_NAME).exists():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        self.slots = AdapterSlots(model, self._adapted)
        return model

    @property
    def _longest(self) -> int:
        return min(self._asked or self.positions, self.positions)

    @property
    def _config(self) -> Any:
        return self._model.config

    async def write(
        self,
        ids: list[int],
        settings: Settings,
        timeout_s: float,
        adapter: Adapter | None = None,
    ) -> AsyncGenerator[Piece]:
        """Yields an answer in pieces while it is generated; the last piece has a finish.

        The generation ends when the caller stops iterating.

        Args:
            ids: Token ids of the prompt.
            settings: Sampling parameters.
            timeout_s: Longest time until the answer ends.
            adapter: One that `slots` has checked.

        Raises:
            QueueFullError: if the queued tokens exceed `queue_tokens`.
            DeadlineError: at the timeout, if the generation has not started.
            GrammarError: if the grammar becomes too complex.
            CacheTooSmallError: if the cache could not hold the text alone.
        """
        sampler = self._sampler(settings)
        loop, pieces = asyncio.get_running_loop(), Pieces()

        def on_piece(piece: Piece | Exception) -> None:
            self._post.send(loop, pieces, piece)

        deadline = time.monotonic() + timeout_s
        job = WritingJob(deadline, ids, settings, sampler, on_piece, adapter)
        self._enqueue(job)
        try:
            async for piece in arriving(pieces, job):
                yield piece
        finally:
            job.is_cancelled.set()

    @torch.inference_mode()
    def _run(self) -> None:
        batch = None
        try:
            reason = sampling.unusual(self._model.generation_config)
            if not reason:
                batch, reason = choice.choose(
                    self._model, rows=self.batch_rows, longest=self._longest, adapters=self.slots
                )
        except Exception as error:  # noqa: BLE001 - or no request would ever be answered
            reason = first_line(error)
        self.engine = self.engine if batch is None else batch.name
        self._has_chosen.set()
        if batch is None:
            LOG.warning("answers are written one after the other: %s", reason)
            super()._run()
            return
        if reason:
            LOG.warning("%s", reason)
        self._write_together(
            BatchWriter(
                batch,
                lambda job: Row(job, self._writer(job)),
                self._end,
                self._post.held,
                self.slots,
            )
        )

    def _write_together(self, writer: BatchWriter) -> None:
        waiting, self._tokens, self._seconds = collections.deque[WritingJob | None](), 0.0, 0.0
        while True:
            self._take(waiting, waits=writer.is_idle)
            begin = time.monotonic()
            writer.take(waiting, self.batch_rows)
            if writer.is_idle:
                if waiting and waiting[0] is None:
                    return
                continue
            try:
                tokens = writer.advance()
            except Exception as error:  # noqa: BLE001 - the cache may be broken: all of them end
                writer.fail(error)
                tokens = 0
            self._observe(tokens, time.monotonic() - begin)
            self.cache_use = writer.use

    def _take(self, waiting: "collections.deque[WritingJob | None]", *, waits: bool = True) -> None:
        """Moves all queued jobs into `waiting`; `waits` for one if there is none."""
        if (waits and not waiting) or not self._jobs.empty():
            super()._take(waiting)

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
        with adapters.alone(self.slots, job.adapter):
            one_by_one.write(
                self._model, job.ids, job.settings, job.sampler, writer, lambda: job.is_over
            )
        writer.finish()
        return len(job.ids) + len(writer.ids)
