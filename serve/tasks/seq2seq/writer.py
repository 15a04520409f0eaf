"""Writes texts with an encoder-decoder model; requests with equal settings share batches."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.positions import learned_positions
from serve.batching.client import DeadlineError, settle
from serve.batching.request_queue import tokens_of
from serve.http.errors import HttpError
from serve.tasks.generating.schemas import Finish
from serve.tasks.generating.thread import GenerationThread, Job
from serve.tasks.seq2seq.batch import Batch


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


@dataclass(frozen=True, slots=True)
class Written:
    """The written texts of a request."""

    texts: Sequence[Text]
    read: int
    """Tokens of all inputs."""
    is_cut: bool
    """True if an input was longer than the model's limit and was cut."""


@dataclass(slots=True, eq=False)
class _Job(Job):
    inputs: Sequence[str]
    settings: Settings
    truncates: bool
    on_written: Callable[[Written | Exception], None]
    read: int = field(default=0, init=False)
    is_cut: bool = field(default=False, init=False)
    texts: dict[int, Text] = field(default_factory=dict, init=False)
    """The complete texts, by the number of their input."""

    @property
    def most_tokens(self) -> int:
        """Tokens of all inputs, estimated from their characters, and most tokens of all drafts."""
        written = len(self.inputs) * self.settings.num_beams * self.settings.most_tokens
        return int(tokens_of([(text,) for text in self.inputs])) + written

    def add(self, number: int, text: Text) -> None:
        """Takes the text of an input; gives all of them to the client with the last one."""
        self.texts[number] = text
        if len(self.texts) == len(self.inputs):
            texts = [self.texts[each] for each in range(len(self.inputs))]
            self.on_written(Written(texts, self.read, self.is_cut))

    def fail(self, error: Exception) -> None:
        """Raises an error in `write`."""
        self.on_written(error)


@dataclass(frozen=True, slots=True)
class _Row:
    """An input of a job."""

    job: _Job
    number: int
    ids: Sequence[int]


class Writer(GenerationThread[_Job]):
    """An encoder-decoder model on its own thread, used from an event loop."""

    def __init__(
        self,
        folder: Path,
        device: Device,
        precision: Precision,
        threads: int,
        queue_tokens: int,
        max_length: int,
    ) -> None:
        """Args: as of `GenerationThread`, and the most tokens of an input."""
        self.batch_rows = 64
        """Most texts and drafts of a batch."""
        self._max_length = max_length
        super().__init__(folder, "AutoModelForSeq2SeqLM", device, precision, threads, queue_tokens)
        settings = self._model.generation_config
        self.defaults = Settings(settings.max_new_tokens, settings.num_beams or 1)
        self.prefix = getattr(self._model.config, "prefix", None) or ""
        room = learned_positions(self._model.get_decoder())
        self.most_tokens = int(min(room, 2**31)) - 1  # the start token takes a position
        """Most tokens of a text, because the decoder has no positions for more."""
        self._is_end_forced = settings.forced_eos_token_id is not None

    async def write(
        self, inputs: Sequence[str], settings: Settings, timeout_s: float, *, truncates: bool = True
    ) -> Written:
        """Returns a text for each input, as soon as the last of them is complete.

        Cancelling ends the request at the next token.

        Raises:
            QueueFullError: if the queued tokens exceed `queue_tokens`.
            DeadlineError: if the texts are not complete before the timeout.
            HttpError: 422 for an input without a token, or one that was cut without `truncates`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Written] = loop.create_future()

        def on_written(found: Written | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(settle, future, found)

        job = _Job(time.monotonic() + timeout_s, inputs, settings, truncates, on_written)
        self._enqueue(job)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise DeadlineError from None
        finally:
            job.is_cancelled.set()

    def _can_share(self, one: _Job, other: _Job) -> bool:
        return one.settings == other.settings

    @torch.inference_mode()
    def _answer(self, jobs: list[_Job]) -> int:
        settings, tokens = jobs[0].settings, 0
        rows = [row for job in jobs for row in self._tokenised(job)]
        for batch in _batches(rows, max(1, self.batch_rows // settings.num_beams)):
            current = [row for row in batch if not row.job.is_over]
            if current:
                tokens += self._written(current, settings)
        return tokens

    def _written(self, rows: Sequence[_Row], settings: Settings) -> int:
        """Writes a batch; where that fails, its own requests alone do. Returns its tokens."""
        try:
            return self._write(rows, settings)
        except Exception as error:  # noqa: BLE001 - given to these clients; other batches continue
            for job in {id(row.job): row.job for row in rows}.values():
                job.is_cancelled.set()
                job.fail(error)
            return 0

    def _tokenised(self, job: _Job) -> list[_Row]:
        """Returns the rows of a job; none if it is over or an input is refused."""
        if job.is_over:
            return []
        try:
            return self._rows(job)
        except Exception as error:  # noqa: BLE001 - given to this client; other jobs continue
            job.fail(error)
            return []

    def _rows(self, job: _Job) -> list[_Row]:
        given = [f"{self.prefix}{text}" for text in job.inputs]
        found = self.tokenizer(given, truncation=True, max_length=self._max_length)
        job.is_cut = any(each.overflowing for each in found.encodings)
        if job.is_cut and not job.truncates:
            message = f"an input has more tokens than the model's limit of {self._max_length}"
            raise HttpError(422, "too_long", message)
        if not all(found["input_ids"]):
            raise HttpError(422, "invalid_request", "an input has no token for the model")
        job.read = sum(map(len, found["input_ids"]))
        return [_Row(job, number, ids) for number, ids in enumerate(found["input_ids"])]

    def _write(self, rows: Sequence[_Row], settings: Settings) -> int:
        """Writes rows together; returns the tokens that were read and written."""
        counts: list[int] = []

        def on_ended(number: int, ids: list[int]) -> None:
            text = self._text(ids, settings)
            counts.append(text.tokens)
            rows[number].job.add(rows[number].number, text)

        batch = Batch(len(rows), self._ends, lambda number: rows[number].job.is_over, on_ended)
        with batch.watching(self._model):
            found = self._model.generate(
                **self._padded([row.ids for row in rows]),
                **self._limits(settings),
                stopping_criteria=transformers.StoppingCriteriaList([batch.must_end]),
            )
        batch.end_all(found)
        return sum(len(row.ids) for row in rows) + settings.num_beams * sum(counts)

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        width, device = max(map(len, rows)), self._model.device
        pad = self.tokenizer.pad_token_id or 0
        filled = [[*ids, *[pad] * (width - len(ids))] for ids in rows]
        known = [[1] * len(ids) + [0] * (width - len(ids)) for ids in rows]
        return {
            "input_ids": torch.tensor(filled, device=device),
            "attention_mask": torch.tensor(known, device=device),
        }

    def _limits(self, settings: Settings) -> dict[str, Any]:
        own, most = self._model.generation_config, settings.most_tokens
        return {
            "max_new_tokens": most,
            "min_new_tokens": min(own.min_new_tokens or 0, most) or None,
            "min_length": min(own.min_length or 0, most),
            "num_beams": settings.num_beams,
        }

    def _text(self, ids: list[int], settings: Settings) -> Text:
        end = next((place for place, token in enumerate(ids) if token in self._ends), None)
        is_cut = end is None or (self._is_end_forced and end == settings.most_tokens - 1)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        count = len(ids) if end is None else end + 1
        return Text(text, count, "length" if is_cut else "stop")


def _batches(rows: Sequence[_Row], size: int) -> list[list[_Row]]:
    """Returns batches of up to `size` rows of similar length, that with the oldest row first.

    Rows of similar length need little padding.
    """
    order = sorted(range(len(rows)), key=lambda place: -len(rows[place].ids))
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    return [[rows[place] for place in part] for part in sorted(parts, key=min)]
