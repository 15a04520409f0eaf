"""Continuous batching: the next batch is formed when the engine becomes free.

There is no timer: an idle engine starts a single text at once, and texts that arrive while it
computes form the next batch. `serve.batching.policy` assigns rows to batches;
`serve.batching.waiting` decides when the engine waits for clients that it has just answered, or
for the rest of a burst.
"""

import asyncio
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jobs.training.config import CHARACTERS_PER_TOKEN
from serve.batching.client import (
    Answer,
    Callback,
    DeadlineError,
    InferenceClient,
    InternalError,
    Load,
    NonFiniteScoresError,
    QueueFullError,
)
from serve.batching.policy import Limits, fits_one_batch, form_batches, is_batch_full
from serve.batching.rows import PendingBatch, Row, Text, Tokenizer
from serve.batching.waiting import NOTHING, Returning, Saving

_logger = logging.getLogger(__name__)

PIECE_CHARACTERS = 65_536
"""Most characters that are tokenised between two batches, so that a very long request does not
delay the others."""
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


Input = Text | Row
"""A text, or a row that a frontend worker has tokenised."""

OnBatch = Callable[[int, int, float], None]
"""Called with the rows, tokens and seconds of each batch."""


@dataclass(slots=True, eq=False)
class Request:
    """The inputs of one request, and their scores so far."""

    inputs: Sequence[Input]
    loop: asyncio.AbstractEventLoop
    on_answered: Callback
    """Called on `loop` with the answer or an error."""
    began: float
    """Arrival by the monotonic clock, in seconds."""
    tokens: float
    """Estimated from the characters."""
    scores: list[list[float]]
    unscored: int
    """Inputs without scores yet."""
    is_ended: bool = False
    """True once the request is answered, cancelled or timed out: its remaining rows are skipped."""
    tokenised: int = 0
    """Inputs that the engine's thread has tokenised."""
    is_cut: bool = False
    timer: asyncio.TimerHandle | None = None
    """Calls `on_answered` with DeadlineError."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    request: Request
    index: int
    row: Row
    length: int
    """Tokens of the row."""


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A batch that was launched on the engine."""

    items: Sequence[_Item]
    pending: PendingBatch
    begin: float


class Batcher(InferenceClient):
    """Runs an engine on its own thread and answers requests from event loops."""

    def __init__(
        self,
        launch: Callable[[Sequence[Row]], PendingBatch],
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
                [rows, labels].
            tokenizer: Tokenises texts on the engine's thread.
            limits: Limits of a batch and of the queue; may be replaced at any time.
            on_batch: Called on the engine's thread after each batch.
            ahead: Batches that are launched before the current one has ended; 0 for an engine that
                computes in the calling thread.
            saving: Seconds that one batch saves over two of half its size.
        """
        self.limits = limits
        self.launch, self.tokenizer, self._on_batch = launch, tokenizer, on_batch
        self._ahead, self._in_flight, self._last_end = ahead, deque[_InFlight](), 0.0
        self._undelivered: tuple[Sequence[_Item], _Done] | None = None
        """A finished batch, whose answers are delivered once the next batch is launched."""
        self._saving, self._returning, self._all_back = saving, Returning(), threading.Event()
        self._arrived: queue.SimpleQueue[Sequence[Request] | None] = queue.SimpleQueue()
        """Requests for the engine's thread; each element has those of one turn of an event loop, so
        that they share a batch. None wakes the thread up."""
        self._received = deque[Request]()
        """Requests taken from `_arrived` that are not tokenised yet."""
        self._gathered: dict[asyncio.AbstractEventLoop, list[Request]] = {}
        """Requests of the current turn of each event loop; put into `_arrived` at its end."""
        self._opened: Request | None = None
        """Request whose inputs are being tokenised."""
        self._is_closed = False
        self._waiting_tokens, self._requests, self._lock = 0.0, 0, threading.Lock()
        self._batch_tokens, self._batch_s = 0.0, 0.0
        """Moving averages of a batch's tokens and seconds."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    @property
    def load(self) -> Load:
        """The requests that wait now."""
        rate = self._batch_tokens / self._batch_s if self._batch_s else None
        return Load(self._requests, max(0.0, self._waiting_tokens), rate)

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
        tokens = sum(map(_characters, inputs)) / CHARACTERS_PER_TOKEN
        waiting, count = self._waiting_tokens, len(inputs)
        if waiting and waiting + tokens > self.limits.queue_tokens:
            raise QueueFullError(self.load.backlog_s)
        request = Request(inputs, loop, on_answered, began, tokens, [[]] * count, count)
        self._count(1, tokens)
        gathered = self._gathered.setdefault(loop, [])
        if not gathered:
            loop.call_soon(self._hand_over, loop)
        gathered.append(request)
        return request

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathered.pop(loop)
        self._arrived.put(gathered)
        with self._lock:
            if self._returning.came(sum(len(r.inputs) for r in gathered), time.monotonic()):
                self._all_back.set()

    def cancel(self, ticket: Request) -> None:
        """Ends a request: its rows that were not scored yet are skipped."""
        if not ticket.is_ended:
            ticket.is_ended = True
            self._count(-1, -ticket.tokens)
            if ticket.timer:
                ticket.timer.cancel()

    def _count(self, requests: int, tokens: float) -> None:
        with self._lock:  # several event loops may call this
            self._requests += requests
            self._waiting_tokens += tokens

    def close(self) -> None:
        """Ends the thread after the launched batches; delivers their answers."""
        self._is_closed = True
        self._arrived.put(None)
        self._thread.join()

    def _run(self) -> None:
        pending: list[_Item] = []
        batches: deque[list[_Item]] = deque()  # remaining batches of the current block
        while not self._is_closed:
            is_idle = not pending and not batches
            pending += self._tokenise(is_idle=is_idle)
            if not batches:
                pending = _active(self._with_company(pending, is_idle=is_idle))
                formed = form_batches(_lengths(pending), self.limits) if pending else []
                batches.extend([pending[index] for index in batch] for batch in formed)
                taken = {index for batch in formed for index in batch}
                pending = [item for index, item in enumerate(pending) if index not in taken]
            if batches:
                self._launch(_active(batches.popleft()))
            while len(self._in_flight) > (self._ahead if batches or pending else 0):
                self._finish(self._in_flight.popleft())
        while self._in_flight:
            self._finish(self._in_flight.popleft())
        self._deliver()

    def _with_company(self, pending: list[_Item], *, is_idle: bool) -> list[_Item]:
        """Returns the pending rows, and waits for further ones if that is faster overall.

        It waits for clients that were just answered, or for the rest of a burst.
        """
        if not pending or self._saving is NOTHING:
            return pending
        # an idle engine has delivered its last batch; the pending rows arrived after that
        away = (
            _lengths(self._undelivered[0])
            if self._undelivered
            else self._returning.answered[len(pending) :]
        )
        lengths = [*_lengths(pending), *away]
        saved_s = self._saving.of(sum(lengths))
        if self._returning.pays(saved_s) and fits_one_batch(lengths, self.limits):
            self._deliver()
            # wakes up once; tokenising each arrival by itself would take the GIL from the loop
            while left_s := self._returning.left_s(time.monotonic(), saved_s):
                if self._is_closed:
                    break
                self._all_back.wait(left_s)
            pending = pending + self._tokenise(is_idle=False)
            if self._returning.are_back:
                return pending
        while is_idle and (left_s := self._burst_left_s(pending)):
            time.sleep(left_s)
            pending = pending + self._tokenise(is_idle=False)
        return pending

    def _burst_left_s(self, pending: Sequence[_Item]) -> float:
        if is_batch_full(lengths := _lengths(pending), self.limits):
            return 0.0
        came = [request.began for request in {item.request for item in pending}]
        return self._returning.burst_left_s(came, time.monotonic(), self._saving, sum(lengths))

    def _tokenise(self, *, is_idle: bool) -> list[_Item]:
        """Tokenises arrived texts, up to PIECE_CHARACTERS; an idle engine waits for the first."""
        taken: list[tuple[Request, int]] = []
        characters = 0.0
        while characters < PIECE_CHARACTERS and (request := self._next(may_wait=is_idle)):
            is_idle = False
            while characters < PIECE_CHARACTERS and request.tokenised < len(request.inputs):
                taken.append((request, request.tokenised))
                characters += _characters(request.inputs[request.tokenised])
                request.tokenised += 1
            self._opened = request if request.tokenised < len(request.inputs) else None
        if not taken:
            return []
        try:
            rows = self._rows([request.inputs[index] for request, index in taken])
        except Exception:
            _logger.exception("%d texts could not be tokenised", len(taken))
            for request in {request for request, _ in taken}:
                request.loop.call_soon_threadsafe(request.on_answered, InternalError())
            return []
        return [_Item(r, i, row, len(row)) for (r, i), row in zip(taken, rows, strict=True)]

    def _rows(self, inputs: Sequence[Input]) -> list[Row]:
        texts = [item for item in inputs if not isinstance(item, Row)]
        rows = iter(self.tokenizer.rows(texts)) if texts else iter(())
        return [item if isinstance(item, Row) else next(rows) for item in inputs]

    def _next(self, *, may_wait: bool) -> Request | None:
        """Returns the first request that has not ended; None if there is none.

        With `may_wait` it waits for a request, and returns None only when the batcher closes.
        """
        while self._opened is None or self._opened.is_ended:
            if not self._received and not self._receive(may_wait=may_wait):
                self._opened = None
                return None
            self._opened = self._received.popleft()
        return self._opened

    def _receive(self, *, may_wait: bool) -> bool:
        """Takes arrived requests; returns False if there are none or the batcher closes."""
        if self._arrived.empty():
            if not may_wait:
                return False
            self._deliver()  # no further batch will be launched before
        self._received.extend(self._arrived.get() or ())
        if may_wait and self._received and self.limits.idle_wait_s:  # sleep(0) releases the GIL
            self._deliver()
            time.sleep(self.limits.idle_wait_s)
        return bool(self._received)

    def _launch(self, batch: list[_Item]) -> None:
        """Launches a batch, unless all its requests have ended."""
        if not batch:
            return
        begin = time.monotonic()
        try:
            pending = self.launch([item.row for item in batch])
        except Exception:
            _logger.exception("a batch of %d texts could not be launched", len(batch))
            self._deliver()
            self._undelivered = batch, _Done([], InternalError(), begin, 0.0, len(batch))
        else:
            self._in_flight.append(_InFlight(batch, pending, begin))

    def _finish(self, flight: _InFlight) -> None:
        """Waits for a batch and records its scores and its duration.

        The answers of the batch before are delivered first. Earlier, the event loop would have
        taken the GIL from this thread while it launched the batch.
        """
        self._deliver()
        error: Exception | None = None
        scores: list[list[float]] = []
        try:
            array = flight.pending()
            scores = array.tolist()
            if not np.isfinite(array).all():
                error = NonFiniteScoresError("the model's scores contain NaN or infinity")
        except Exception:
            _logger.exception("a batch of %d texts failed", len(flight.items))
            error = InternalError()
        now = time.monotonic()
        # a batch that was launched ahead starts when the batch before it ends
        spent_s, self._last_end = now - max(flight.begin, self._last_end), now
        rows, tokens = len(flight.items), sum(_lengths(flight.items))
        self._update_averages(tokens, spent_s)
        if self._on_batch:
            self._on_batch(rows, tokens, spent_s)
        self._undelivered = flight.items, _Done(scores, error, flight.begin, spent_s, rows)
        if spent_s < QUICK_S:
            self._deliver()

    def _deliver(self) -> None:
        """Passes the scores of the finished batch to the event loops of its requests."""
        if not self._undelivered:
            return
        (batch, done), self._undelivered = self._undelivered, None
        with self._lock:
            self._returning.told(_lengths(batch), time.monotonic())
            self._all_back.clear()
        numbered = list(enumerate(batch))
        for loop in {item.request.loop for item in batch}:
            own = [(n, item) for n, item in numbered if item.request.loop is loop]
            loop.call_soon_threadsafe(_answer, own, done)

    def _update_averages(self, tokens: int, spent_s: float) -> None:
        # averages of tokens and of seconds, not of their rate: if two batches end at the same time,
        # the second one took 0 s
        weight = SMOOTHING if self._batch_s else 1.0
        self._batch_tokens += weight * (tokens - self._batch_tokens)
        self._batch_s += weight * (spent_s - self._batch_s)


def _active(items: list[_Item]) -> list[_Item]:
    """Returns the items whose requests have not ended."""
    return [item for item in items if not item.request.is_ended]


def _lengths(items: Sequence[_Item]) -> list[int]:
    return [item.length for item in items]


def _characters(item: Input) -> float:
    """Returns the characters of an input, estimated for a row from its tokens."""
    return len(item) * CHARACTERS_PER_TOKEN if isinstance(item, Row) else sum(map(len, item))


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of a batch."""

    scores: list[list[float]]
    error: Exception | None
    begin: float
    infer_s: float
    rows: int


def _answer(items: Sequence[tuple[int, _Item]], done: _Done) -> None:
    """Stores the scores of one batch in its requests, and answers the complete ones.

    Runs on the requests' event loop, once for each batch. Each item has its row number in front.
    """
    for number, item in items:
        request = item.request
        if request.is_ended:
            continue
        if done.error is not None:
            request.on_answered(done.error)
            continue
        request.scores[item.index] = done.scores[number]
        request.is_cut |= item.row.is_cut
        request.unscored -= 1
        if not request.unscored:
            queue_s = done.begin - request.began
            request.on_answered(
                Answer(request.scores, request.is_cut, done.rows, queue_s, done.infer_s)
            )
