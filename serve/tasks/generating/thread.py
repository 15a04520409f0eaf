"""A generating model on its own thread, which answers the queued requests of an event loop."""

import abc
import collections
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import transformers

from jobs.spec.train import Precision
from jobs.training.config import Device
from jobs.training.model.precision import AUTOCAST
from serve.batching.client import Load, QueueFullError

SMOOTHING = 0.1
"""Weight of the newest answer in the moving average of tokens per second."""


@dataclass(slots=True, eq=False)
class Job(abc.ABC):
    """A request that waits for the thread, or is being answered by it."""

    deadline: float
    """On the monotonic clock: generation stops then."""
    is_cancelled: threading.Event = field(default_factory=threading.Event, init=False)
    """Set once the client no longer waits for the answer."""

    @property
    def is_over(self) -> bool:
        """True if the client no longer waits for the answer, or the deadline has passed."""
        return self.is_cancelled.is_set() or time.monotonic() >= self.deadline

    @property
    @abc.abstractmethod
    def most_tokens(self) -> int:
        """Tokens that are read, and most tokens that are written."""

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Gives the client an error in place of the answer, or of its rest."""


JobT = TypeVar("JobT", bound=Job)


class GenerationThread(abc.ABC, Generic[JobT]):
    """A model of transformers on its own thread. Subclasses answer its jobs."""

    def __init__(
        self,
        folder: Path,
        auto_class: str,
        device: Device,
        precision: Precision,
        threads: int,
        queue_tokens: int,
    ) -> None:
        """Args: a model's folder, the class that loads it, and the replica's settings."""
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if device == "cpu":
            torch.set_num_threads(threads)
        dtype = AUTOCAST.get(precision, torch.float32)
        model = self._model = self._loaded(folder, auto_class, device, dtype)
        ends = model.generation_config.eos_token_id
        given = ends if isinstance(ends, list) else [ends]
        self._ends = frozenset(end for end in given if end is not None)
        self._model.generate(  # loads kernels before the first request
            input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device),
            max_new_tokens=1,
            min_length=0,
        )
        self.queue_tokens = queue_tokens
        self._jobs: queue.SimpleQueue[JobT | None] = queue.SimpleQueue()
        self._waiting, self._lock = list[JobT](), threading.Lock()
        self._tokens_per_s: float | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="generator")
        self._thread.start()

    def _loaded(
        self, folder: Path | str, auto_class: str, device: Device, dtype: torch.dtype
    ) -> Any:
        """Returns the model of a folder, or of an id on the Hub, on its device."""
        kind: Any = getattr(transformers, auto_class)
        model = kind.from_pretrained(folder, use_safetensors=True, dtype=dtype)
        return model.to(device).eval()

    @property
    def load(self) -> Load:
        """The requests that wait or are being answered.

        Requests whose clients have left before their turn count no more.
        """
        with self._lock:
            first, others = self._waiting[:1], self._waiting[1:]
        jobs = [*first, *(job for job in others if not job.is_cancelled.is_set())]
        tokens = sum(job.most_tokens for job in jobs)
        return Load(len(jobs), float(tokens), self._tokens_per_s)

    def close(self) -> None:
        """Ends the thread after the current answer."""
        self._jobs.put(None)
        self._thread.join()

    def check_room(self, tokens: int) -> None:
        """Raises QueueFullError if the queued tokens and these would exceed `queue_tokens`."""
        load = self.load
        if load.requests and load.tokens + tokens > self.queue_tokens:
            raise QueueFullError(load.backlog_s)

    def _enqueue(self, job: JobT) -> None:
        """Queues a job; raises QueueFullError if the queued tokens would exceed `queue_tokens`."""
        self.check_room(job.most_tokens)
        with self._lock:
            self._waiting.append(job)
        self._jobs.put(job)

    @abc.abstractmethod
    def _answer(self, jobs: list[JobT]) -> int:
        """Answers jobs together; returns the tokens that were read and written.

        Any exception is given to the jobs' clients.
        """

    def _can_share(self, one: JobT, other: JobT) -> bool:
        """Returns whether a waiting job is answered together with the next one."""
        return False

    def _run(self) -> None:
        waiting = collections.deque[JobT | None]()
        while True:
            self._take(waiting)
            first = waiting.popleft()
            if first is None:
                return
            others = [job for job in waiting if job is not None and self._can_share(first, job)]
            for job in others:
                waiting.remove(job)
            self._answer_all([first, *others])

    def _take(self, waiting: "collections.deque[JobT | None]") -> None:
        """Moves all queued jobs into `waiting`; waits for one if there is none."""
        if not waiting:
            waiting.append(self._jobs.get())
        while not self._jobs.empty():
            waiting.append(self._jobs.get())

    def _answer_all(self, jobs: list[JobT]) -> None:
        begin = time.monotonic()
        asked = [job for job in jobs if not job.is_cancelled.is_set()]
        try:
            tokens = self._answer(asked) if asked else 0
        except Exception as error:  # noqa: BLE001 - given to the clients; the thread continues
            for job in asked:
                job.fail(error)
        else:
            rate = tokens / max(1e-6, time.monotonic() - begin)
            known = self._tokens_per_s
            if tokens:
                self._tokens_per_s = rate if known is None else known + SMOOTHING * (rate - known)
        finally:
            with self._lock:
                for job in jobs:
                    self._waiting.remove(job)
