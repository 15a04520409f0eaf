"""Writes texts with an encoder-decoder model; requests with equal settings share a batch."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.positions import learned_positions
from serve.batching.client import DeadlineError
from serve.tasks.generating.schemas import Finish
from serve.tasks.generating.thread import GenerationThread, Job


@dataclass(frozen=True, slots=True)
class Settings:
    """How texts are written."""

    most_tokens: int
    num_beams: int


@dataclass(frozen=True, slots=True)
class Text:
    """A written text."""

    text: str
    tokens: int
    finish: Finish


@dataclass(slots=True, eq=False)
class _Job(Job):
    rows: Sequence[Sequence[int]]
    settings: Settings
    on_written: Callable[[list[Text] | Exception], None]

    @property
    def most_tokens(self) -> int:
        """Tokens of all inputs, and most tokens of the texts and their drafts."""
        written = len(self.rows) * self.settings.num_beams * self.settings.most_tokens
        return sum(map(len, self.rows)) + written

    def fail(self, error: Exception) -> None:
        """Raises an error in `write`."""
        self.on_written(error)


class Writer(GenerationThread[_Job]):
    """An encoder-decoder model on its own thread, used from an event loop."""

    def __init__(
        self, folder: Path, device: Device, precision: Precision, threads: int, queue_tokens: int
    ) -> None:
        self.batch_rows = 64
        """Most texts and drafts of a batch."""
        super().__init__(folder, "AutoModelForSeq2SeqLM", device, precision, threads, queue_tokens)
        settings = self._model.generation_config
        self.defaults = Settings(settings.max_new_tokens, settings.num_beams or 1)
        self.prefix = getattr(self._model.config, "prefix", None) or ""
        room = learned_positions(self._model.get_decoder())
        self.most_tokens = int(min(room, 2**31)) - 1  # the start token takes a position
        """Most tokens of a text, because the decoder has no positions for more."""
        self._is_end_forced = settings.forced_eos_token_id is not None

    async def write(
        self, rows: Sequence[Sequence[int]], settings: Settings, timeout_s: float
    ) -> list[Text]:
        """Returns the text for each row of token ids.

        Texts that are not complete at the timeout end there. Cancelling drops the request.

        Raises:
            QueueFullError: if the queued tokens exceed `queue_tokens`.
            DeadlineError: if the generation does not start before the timeout.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Text]] = loop.create_future()

        def settle(found: list[Text] | Exception) -> None:
            if future.done():
                return
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)

        def on_written(found: list[Text] | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(settle, found)

        job = _Job(time.monotonic() + timeout_s, rows, settings, on_written)
        self._enqueue(job)
        try:
            return await future
        finally:
            job.is_cancelled.set()

    def _can_share(self, one: _Job, other: _Job) -> bool:
        return one.settings == other.settings

    @torch.inference_mode()
    def _answer(self, jobs: list[_Job]) -> int:
        now = time.monotonic()
        for job in jobs:
            if now >= job.deadline:
                job.fail(DeadlineError())
        jobs = [job for job in jobs if now < job.deadline]
        if not jobs:
            return 0
        rows = [(job, ids) for job in jobs for ids in job.rows]
        # rows of similar length share a batch, which then has little padding
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place][1]))
        size, written = max(1, self.batch_rows // jobs[0].settings.num_beams), dict[int, Text]()
        for first in range(0, len(order), size):
            part = order[first : first + size]
            texts = self._written([rows[place] for place in part], jobs[0].settings)
            written |= dict(zip(part, texts, strict=True))
        texts = [written[place] for place in range(len(rows))]
        for job in jobs:
            job.on_written(texts[: len(job.rows)])
            texts = texts[len(job.rows) :]
        read = sum(len(ids) for _, ids in rows)
        return read + jobs[0].settings.num_beams * sum(text.tokens for text in written.values())

    def _written(
        self, rows: Sequence[tuple[_Job, Sequence[int]]], settings: Settings
    ) -> list[Text]:
        if all(job.is_cancelled.is_set() for job, _ in rows):
            return [Text("", 0, "length") for _ in rows]
        width, device = max(len(ids) for _, ids in rows), self._model.device
        pad = self.tokenizer.pad_token_id or 0
        filled = [[*ids, *[pad] * (width - len(ids))] for _, ids in rows]
        known = [[1] * len(ids) + [0] * (width - len(ids)) for _, ids in rows]
        own = self._model.generation_config
        found = self._model.generate(
            input_ids=torch.tensor(filled, device=device),
            attention_mask=torch.tensor(known, device=device),
            max_new_tokens=settings.most_tokens,
            min_new_tokens=min(own.min_new_tokens or 0, settings.most_tokens) or None,
            min_length=min(own.min_length or 0, settings.most_tokens),
            num_beams=settings.num_beams,
            stopping_criteria=transformers.StoppingCriteriaList(
                [_deadlines([job for job, _ in rows], settings.num_beams)]
            ),
        )
        return [self._text(ids, settings) for ids in found[:, 1:].tolist()]

    def _text(self, ids: list[int], settings: Settings) -> Text:
        end = next((place for place, token in enumerate(ids) if token in self._ends), None)
        is_cut = end is None or (self._is_end_forced and end == settings.most_tokens - 1)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        count = len(ids) if end is None else end + 1
        return Text(text, count, "length" if is_cut else "stop")


def _deadlines(jobs: Sequence[_Job], beams: int) -> Any:
    """Returns a criterion of transformers: whether each draft's time is over, [rows] of bool."""

    def is_over(input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        now = time.monotonic()
        over = [now >= job.deadline or job.is_cancelled.is_set() for job in jobs]
        flags = torch.tensor(over, device=input_ids.device)
        return flags.repeat_interleave(len(input_ids) // len(jobs)) if beams > 1 else flags

    return is_over
