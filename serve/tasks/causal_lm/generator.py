"""A language model that writes one answer after the other, on a thread of its own."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
import transformers.generation.streamers

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.precision import AUTOCAST
from serve.batching.client import DeadlineError, Load, QueueFullError
from serve.tasks.causal_lm.schemas import Finish

UNFINISHED = "\ufffd"
"""What the start of a character that takes several tokens reads as."""
SMOOTHING = 0.1
"""Weight of the newest answer in the average rate."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How an answer is written."""

    most_tokens: int
    temperature: float = 1.0
    """0 takes the likeliest token always."""
    top_p: float = 1.0
    stops: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that was written since the last piece."""

    text: str
    tokens: int
    """Written so far."""
    finish: Finish | None = None
    """Set in the last piece."""


@dataclass(slots=True, eq=False)
class _Job:
    ids: list[int]
    settings: Settings
    deadline: float
    tell: Callable[[Piece | Exception], None]
    is_left: threading.Event = field(default_factory=threading.Event)
    """Whether nobody waits for it any more."""

    @property
    def most_tokens(self) -> int:
        """Read and written."""
        return len(self.ids) + self.settings.most_tokens


class Generator:
    """A loaded model, asked from an event loop."""

    def __init__(
        self, folder: Path, device: Device, precision: Precision, threads: int, queue_tokens: int
    ) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if device == "cpu":
            torch.set_num_threads(threads)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, use_safetensors=True, dtype=AUTOCAST.get(precision, torch.float32)
        )
        self._model: Any = model.to(device).eval()
        ends = model.generation_config.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        self._model.generate(  # loads kernels before the first request
            input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), max_new_tokens=1
        )
        self.queue_tokens = queue_tokens
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting, self._lock = list[_Job](), threading.Lock()
        self._tokens_per_s: float | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="generator")
        self._thread.start()

    @property
    def load(self) -> Load:
        """What waits or is being written."""
        with self._lock:
            tokens = sum(job.most_tokens for job in self._waiting)
            return Load(len(self._waiting), float(tokens), self._tokens_per_s)

    async def write(
        self, ids: list[int], settings: Settings, timeout_s: float
    ) -> AsyncGenerator[Piece]:
        """An answer to a prompt of token ids, as it comes; the last piece has a finish.

        Raises QueueFullError; DeadlineError when no word came in time. Whoever stops iterating
        ends the writing.
        """
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece | Exception]()

        def tell(piece: Piece | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        load = self.load
        job = _Job(ids, settings, time.monotonic() + timeout_s, tell)
        if load.requests and load.tokens + job.most_tokens > self.queue_tokens:
            raise QueueFullError(load.backlog_s)
        with self._lock:
            self._waiting.append(job)
        self._jobs.put(job)
        try:
            while True:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.finish:
                    return
        finally:
            job.is_left.set()

    def close(self) -> None:
        """End the thread after the answer that is being written."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not job.is_left.is_set():
                    self._answer(job)
            except Exception as error:  # noqa: BLE001 - told to who asked; the thread goes on
                job.tell(error)
            finally:
                with self._lock:
                    self._waiting.remove(job)

    @torch.inference_mode()
    def _answer(self, job: _Job) -> None:
        begin, settings = time.monotonic(), job.settings
        if begin >= job.deadline:
            raise DeadlineError
        writer = _Writer(self.tokenizer, job, self._ends)
        ids = torch.tensor([job.ids], device=self._model.device)
        chosen: dict[str, Any] = {"do_sample": False}
        if settings.temperature > 0:
            chosen = {
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
            **chosen,
        )
        writer.finish()
        rate = (len(job.ids) + len(writer.ids)) / max(1e-6, time.monotonic() - begin)
        known = self._tokens_per_s
        self._tokens_per_s = rate if known is None else known + SMOOTHING * (rate - known)


class _Writer(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
    """Turns tokens into text as they come, and says when to stop."""

    def __init__(self, tokenizer: Any, job: _Job, ends: frozenset[int]) -> None:
        self._tokenizer, self._job, self._ends = tokenizer, job, ends
        self.ids: list[int] = []
        self._text = ""
        self._told = 0
        """Characters told so far."""
        self._has_prompt = False
        self._is_stopped = False
        self._held = max((len(stop) for stop in job.settings.stops), default=1) - 1
        """Characters that may be the start of a stop text."""

    def put(self, value: torch.Tensor) -> None:
        """A token; the prompt comes first."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        token = int(value.reshape(-1)[0])
        self.ids.append(token)
        text = self._tokenizer.decode(self.ids, skip_special_tokens=True)
        if not text.endswith(UNFINISHED):
            self._text = text
        found = [self._text.find(stop) for stop in self._job.settings.stops]
        cuts = [place for place in found if place >= 0]
        if cuts:
            self._text, self._is_stopped = self._text[: min(cuts)], True
        end = len(self._text) if self._is_stopped else len(self._text) - self._held
        if end > self._told:
            self._job.tell(Piece(self._text[self._told : end], len(self.ids)))
            self._told = end

    def end(self) -> None:
        """Told by `finish`, which knows why."""

    def must_end(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Whether each row is done."""
        is_over = (
            self._is_stopped or self._job.is_left.is_set() or time.monotonic() >= self._job.deadline
        )
        return torch.full((len(input_ids),), is_over, device=input_ids.device)

    def finish(self) -> None:
        """Tell the last piece."""
        is_done = self._is_stopped or (bool(self.ids) and self.ids[-1] in self._ends)
        finish: Finish = "stop" if is_done else "length"
        self._job.tell(Piece(self._text[self._told :], len(self.ids), finish))
