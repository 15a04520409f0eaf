"""Continuous batching: the next batch is formed when the engine becomes free.

There is no timer: an idle engine starts a single text at once, and texts that arrive while it
computes form the next batch. `serve.batching.policy` assigns rows to batches;
`serve.batching.waiting` decides when the engine waits for clients that it has just answered.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serve.batching.client import (
    Callback,
    DeadlineError,
    InferenceClient,
    InternalError,
    Load,
    NonFiniteScoresError,
    QueueFullError,
)
from serve.batching.policy import Limits, fits_one_batch, form_batches
from serve.batching.request_queue import RequestQueue, tokens_of
from serve.batching.requests import BatchResult, Item, Request, active, lengths_of
from serve.batching.rows import Input, PendingScores, Row, Tokenizer
from serve.batching.waiting import NOTHING, Saving, Waiting

_logger = logging.getLogger(__name__)

SWITCH_S = 2e-4
"""Python's thread switch interval: longest time for which the event loop keeps the GIL while the
engine's thread waits for it. With Python's default of 5 ms the engine idles after each batch and
serves 5 to 10 % fewer texts; with 0.1 ms a request without inference costs 10 % more. See
benchmarks/HISTORY.md."""
QUICK_S = 1e-3
"""The answers of a batch that took less than this are delivered at once: the event loop, not the
engine, is the bottleneck then."""
SMOOTHING = 0.1
"""Weight of the newest batch in the moving averages of tokens and seconds."""

OnBatch = Callable[[int, int, float], None]
"""Called with the rows, tokens and seconds of each batch."""


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A batch that was launched on the engine."""

    items: Sequence[Item]
    pending: PendingScores
    begin: float


class Batcher(InferenceClient):
    """Runs an engine on its own thread and answers requests from event loops."""

    def __init__(
        self,
        launch: Callable[[Sequence[Row]], PendingScores],
        tokenizer: Tokenizer,
        limits: Limits,
        on_batch: OnBatch | None = None,
        *,
        ahead: int = 0,
        saving: Saving = NOTHING,
    ) -> None:
        """Starts the engine's thread.

        Args:
            launch: Starts a batch of rows; the returned function waits for its scores,
                [rows, labels] or an array [tokens, labels] for each row.
            tokenizer: Tokenises texts on the engine's thread.
            limits: Limits of a batch and of the queue; may be replaced at any time.
            on_batch: Called on the engine's thread after each batch.
            ahead: Batches that are launched before the current one has ended; 0 for an engine that
                computes in the calling thread.
            saving: Seconds that one batch saves over two of half its size.
        """
        self.limits, self.launch, self.tokenizer = limits, launch, tokenizer
        self._on_batch = on_batch
        self._ahead, self._in_flight, self._last_end = ahead, deque[_InFlight](), 0.0
        self._waiting = Waiting(saving)
        self._queue = RequestQueue(
            tokenizer, lambda: self.limits.idle_wait_s, self._waiting.arrived, self._deliver
        )
        self._undelivered: BatchResult | None = None
        """A finished batch, whose answers are delivered once the next batch is launched."""
        self._is_closed = False
        self._batch_tokens, self._batch_s = 0.0, 0.0
        """Moving averages of a batch's tokens and seconds."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    @property
    def load(self) -> Load:
        """The requests that wait now."""
        rate = self._batch_tokens / self._batch_s if self._batch_s else None
        return Load(self._queue.requests, max(0.0, self._queue.waiting_tokens), rate)

    def start(self, inputs: Sequence[Input], timeout_s: float, on_answered: Callback) -> Request:
        """Queues inputs of the running event loop; see `InferenceClient`."""
        loop = asyncio.get_running_loop()
        request = self.submit(inputs, loop, on_answered, time.monotonic())
        request.timer = loop.call_later(timeout_s, on_answered, DeadlineError())
        return request

    def submit(
        self,
        inputs: Sequence[Input],
        loop: asyncio.AbstractEventLoop,
        on_answered: Callback,
        began: float,
    ) -> Request:
        """Queues inputs without a timeout; the caller must `cancel` the request at the end.

        Args:
            inputs: Texts, pairs of texts, or rows.
            loop: The running event loop, on which `on_answered` is called.
            on_answered: Called with the answer or an error.
            began: Arrival of the request by the monotonic clock, in seconds.

        Raises:
            QueueFullError: if the queued tokens exceed the limit.
        """
        waiting = self._queue.waiting_tokens
        if waiting and waiting + tokens_of(inputs) > self.limits.queue_tokens:
            raise QueueFullError(self.load.backlog_s)
        return self._queue.put(inputs, loop, on_answered, began)

    def cancel(self, ticket: Request) -> None:
        """Ends a request: its rows that were not scored yet are skipped."""
        self._queue.end(ticket)

    def close(self) -> None:
        """Ends the thread after the launched batches; delivers their answers."""
        self._is_closed = True
        self._queue.wake()
        self._thread.join()

    def _run(self) -> None:
        pending: list[Item] = []
        batches: deque[list[Item]] = deque()  # remaining batches of the current block
        while not self._is_closed:
            is_idle = not pending and not batches
            pending += self._queue.take(may_wait=is_idle)
            if not batches:
                pending = active(self._with_answered(pending))
                formed = form_batches(lengths_of(pending), self.limits) if pending else []
                batches.extend([pending[index] for index in batch] for batch in formed)
                taken = {index for batch in formed for index in batch}
                pending = [item for index, item in enumerate(pending) if index not in taken]
            if batches:
                self._launch(active(batches.popleft()))
            while len(self._in_flight) > (self._ahead if batches or pending else 0):
                self._finish(self._in_flight.popleft())
        while self._in_flight:
            self._finish(self._in_flight.popleft())
        self._deliver()

    def _with_answered(self, pending: list[Item]) -> list[Item]:
        """Returns the pending rows, and those of the clients that the engine waited for."""
        if not pending or self._waiting.saving is NOTHING:
            return pending
        finished = self._undelivered
        missing = lengths_of(finished.items) if finished else self._waiting.missing
        lengths = [*lengths_of(pending), *missing]
        tokens = sum(lengths)
        if fits_one_batch(lengths, self.limits) and self._waiting.is_due(len(missing), tokens):
            self._deliver()
            # takes the rows once; tokenising each arrival would take the GIL from the event loop
            self._waiting.wait(tokens)
            pending = pending + self._queue.take(may_wait=False)
        return pending

    def _launch(self, batch: list[Item]) -> None:
        """Launches a batch, unless all its requests have ended."""
        if not batch:
            return
        begin = time.monotonic()
        try:
            pending = self.launch([item.row for item in batch])
        except Exception:
            _logger.exception("a batch of %d texts could not be launched", len(batch))
            self._deliver()
            self._undelivered = BatchResult(batch, [], InternalError(), begin, 0.0)
        else:
            self._in_flight.append(_InFlight(batch, pending, begin))

    def _finish(self, flight: _InFlight) -> None:
        """Waits for a batch and records its scores and its duration.

        The answers of the batch before are delivered first. Earlier, the event loop would have
        taken the GIL from this thread while it launched the batch.
        """
        self._deliver()
        error: Exception | None = None
        scores: Sequence[Any] = []
        try:
            found = flight.pending()
            if isinstance(found, np.ndarray):
                scores, arrays = found.tolist(), [found]
            else:
                scores = arrays = list(found)
            if not all(np.isfinite(each).all() for each in arrays):
                error = NonFiniteScoresError("the model's scores contain NaN or infinity")
        except Exception:
            _logger.exception("a batch of %d texts failed", len(flight.items))
            error = InternalError()
        now = time.monotonic()
        # a batch that was launched ahead starts when the batch before it ends
        spent_s, self._last_end = now - max(flight.begin, self._last_end), now
        rows, tokens = len(flight.items), sum(lengths_of(flight.items))
        self._update_averages(tokens, spent_s)
        if self._on_batch:
            self._on_batch(rows, tokens, spent_s)
        self._undelivered = BatchResult(flight.items, scores, error, flight.begin, spent_s)
        if spent_s < QUICK_S:
            self._deliver()

    def _deliver(self) -> None:
        """Passes the scores of the finished batch to the event loops of its requests."""
        finished, self._undelivered = self._undelivered, None
        if finished:
            self._waiting.answered(lengths_of(finished.items))
            finished.deliver()

    def _update_averages(self, tokens: int, spent_s: float) -> None:
        # averages of tokens and of seconds, not of their rate: if two batches end at the same time,
        # the second one took 0 s
        weight = SMOOTHING if self._batch_s else 1.0
        self._batch_tokens += weight * (tokens - self._batch_tokens)
        self._batch_s += weight * (spent_s - self._batch_s)
