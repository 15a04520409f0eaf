"""Generates answers with a language model, one request after the other, on its own thread."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
import transformers.generation.streamers

from serve.batching.client import DeadlineError
from serve.tasks.generating.schemas import Finish
from serve.tasks.generating.thread import GenerationThread, Job

UNFINISHED = "\ufffd"
"""The replacement character, which a tokenizer returns for an incomplete UTF-8 character."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters of one answer."""

    most_tokens: int
    temperature: float = 1.0
    """0 always selects the most likely token."""
    top_p: float = 1.0
    stops: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: the text generated since the last piece."""

    text: str
    tokens: int
    """Tokens of the answer so far."""
    finish: Finish | None = None
    """Why the answer ended; set in the last piece only."""


@dataclass(slots=True, eq=False)
class _Job(Job):
    ids: list[int]
    settings: Settings
    on_piece: Callable[[Piece | Exception], None]

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt, and most tokens of the answer."""
        return len(self.ids) + self.settings.most_tokens

    def fail(self, error: Exception) -> None:
        """Raises an error in `write`."""
        self.on_piece(error)


class Generator(GenerationThread[_Job]):
    """A language model on its own thread, which answers one request after the other."""

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
            DeadlineError: if the generation does not start before the timeout.
        """
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece | Exception]()

        def on_piece(piece: Piece | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        job = _Job(time.monotonic() + timeout_s, ids, settings, on_piece)
        self._enqueue(job)
        try:
            while True:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.finish:
                    return
        finally:
            job.is_cancelled.set()

    @torch.inference_mode()
    def _answer(self, jobs: list[_Job]) -> int:
        (job,) = jobs
        settings = job.settings
        if time.monotonic() >= job.deadline:
            raise DeadlineError
        writer = _Writer(self.tokenizer, job, self._ends)
        ids = torch.tensor([job.ids], device=self._model.device)
        sampling: dict[str, Any] = {"do_sample": False}
        if settings.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "top_k": 0,
            }
        if settings.seed is not None:
            torch.manual_seed(settings.seed)
        self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings.most_tokens,
            pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0,
            streamer=writer,
            stopping_criteria=transformers.StoppingCriteriaList([writer.must_end]),
            **sampling,
        )
        writer.finish()
        return len(job.ids) + len(writer.ids)


class _Writer(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
    """Decodes tokens as they are generated, and decides when the generation stops."""

    def __init__(self, tokenizer: Any, job: _Job, ends: frozenset[int]) -> None:
        self._tokenizer, self._job, self._ends = tokenizer, job, ends
        self.ids: list[int] = []
        self._text = ""
        self._sent = 0
        """Characters sent so far."""
        self._has_prompt = False
        self._is_stopped = False
        self._withheld = max((len(stop) for stop in job.settings.stops), default=1) - 1
        """Last characters that are not sent yet because a stop text may begin in them."""

    def put(self, value: torch.Tensor) -> None:
        """Receives the prompt in the first call and one token in every further one."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        token = int(value.reshape(-1)[0])
        self.ids.append(token)
        text = self._tokenizer.decode(self.ids, skip_special_tokens=True)
        if not text.endswith(UNFINISHED):
            self._text = text
        positions = [self._text.find(stop) for stop in self._job.settings.stops]
        cuts = [position for position in positions if position >= 0]
        if cuts:
            self._text, self._is_stopped = self._text[: min(cuts)], True
        end = len(self._text) if self._is_stopped else len(self._text) - self._withheld
        if end > self._sent:
            self._job.on_piece(Piece(self._text[self._sent : end], len(self.ids)))
            self._sent = end

    def end(self) -> None:
        """Does nothing: `finish` sends the last piece, because it knows why the answer ended."""

    def must_end(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Returns, as [rows] of bool, whether the generation stops; a transformers criterion."""
        is_over = self._is_stopped or self._job.is_over
        return torch.full((len(input_ids),), is_over, device=input_ids.device)

    def finish(self) -> None:
        """Sends the last piece, with the reason why the answer ended."""
        is_done = self._is_stopped or (bool(self.ids) and self.ids[-1] in self._ends)
        finish: Finish = "stop" if is_done else "length"
        self._job.on_piece(Piece(self._text[self._sent :], len(self.ids), finish))


async def whole(pieces: AsyncGenerator[Piece]) -> tuple[str, Piece]:
    """Returns the text of an answer, and its last piece."""
    async with contextlib.aclosing(pieces):
        known = [piece async for piece in pieces]
    return "".join(piece.text for piece in known), known[-1]
