"""Requests to batches: formed the moment the engine is free, by length, the oldest always in.

No timer and no early sealing: an idle engine takes a lone text at once, a busy one finds company
for it meanwhile. Measured against first-in-first-out batches of 32 in benchmarks/LOG.md.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jobs.training.config import CHARACTERS_PER_TOKEN
from serve.engines.engine import Landing
from serve.engines.rows import Row, Text, Tokenizer

PIECE_CHARACTERS = 65_536
"""Most text that is tokenised between two batches, so that a huge request holds nobody up."""
PATIENCE = 8.0
"""Batch times after which the oldest row's company is chosen by age instead of length. Fewer, and a
full queue is always worked off by age: a third slower with 64 clients, see benchmarks/LOG.md."""
SMOOTHING = 0.1
"""Weight of the newest batch in the average rate and time."""


class QueueFullError(Exception):
    """More waits than may; `retry_after_s` is the backlog."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("the queue is full")
        self.retry_after_s = retry_after_s


class DeadlineError(Exception):
    """The answer would come too late, so the engine was not asked."""


class ModelError(Exception):
    """The model's scores are not numbers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch and the queue hold."""

    batch_tokens: int = 512
    """Padded tokens of a batch; the oldest row goes in even when it alone has more."""
    batch_rows: int = 64
    queue_tokens: int = 262_144
    """Tokens that may wait."""
    idle_wait_s: float = 0.0
    """How long an idle engine waits for company of a lone text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores of a request's texts, and how they came about."""

    scores: list[list[float]]
    """Of each text, one for each label."""
    is_cut: bool
    """Whether some text was longer than the model takes."""
    batch_rows: int
    """Rows of the last batch that it was part of."""
    queue_s: float
    """From asking to the start of the last batch."""
    infer_s: float
    """Of that batch."""


@dataclass(slots=True, eq=False)
class _Request:
    texts: Sequence[Text]
    future: "asyncio.Future[Answer]"
    began: float
    scores: list[list[float]] = field(default_factory=list)
    left: int = 0
    is_cut: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    request: _Request
    index: int
    row: Row
    length: int
    """Of the row, in tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A batch that the engine has begun with."""

    items: Sequence[_Item]
    landing: Landing
    begin: float


@dataclass(frozen=True, slots=True)
class Load:
    """What waits now, and how fast it goes."""

    requests: int
    tokens: float
    tokens_per_s: float | None
    """None before the first batch."""

    @property
    def backlog_s(self) -> float:
        """Seconds until all that waits is answered; 0 before anything is known."""
        return self.tokens / self.tokens_per_s if self.tokens_per_s else 0.0


def pick(lengths: Sequence[int], limits: Limits, *, by_age: bool) -> list[int]:
    """Which of the waiting rows, in order of arrival, go into the next batch.

    The oldest always does; then its nearest neighbours in length, or, `by_age`, those next in
    line, while the padded batch stays within its tokens and rows.
    """
    if by_age:
        return _in_line(lengths, limits)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    low = high = order.index(0)
    while high - low + 1 < limits.batch_rows:
        shorter = lengths[order[low]] - lengths[order[low - 1]] if low else None
        longer = lengths[order[high + 1]] - lengths[order[high]] if high + 1 < len(order) else None
        rows = high - low + 2
        fits_longer = longer is not None and rows * lengths[order[high + 1]] <= limits.batch_tokens
        fits_shorter = shorter is not None and rows * lengths[order[high]] <= limits.batch_tokens
        if fits_shorter and (not fits_longer or shorter <= longer):  # type: ignore[operator]
            low -= 1
        elif fits_longer:
            high += 1
        else:
            break
    return order[low : high + 1]


def _in_line(lengths: Sequence[int], limits: Limits) -> list[int]:
    width = count = 0
    for length in lengths[: limits.batch_rows]:
        width = max(width, length)
        if count and (count + 1) * width > limits.batch_tokens:
            break
        count += 1
    return list(range(count))


class Batcher:
    """An engine on its own thread, asked from an event loop."""

    def __init__(
        self,
        launch: Callable[[Sequence[Row]], Landing],
        tokenizer: Tokenizer,
        limits: Limits,
        on_batch: Callable[[int, int, float], None] | None = None,
        *,
        ahead: int = 0,
    ) -> None:
        """`launch` begins with some rows; what it returns gives their scores as [rows, labels].

        `on_batch` is told rows, tokens and seconds of each batch, from the engine's thread. So many
        batches `ahead` of the one that is waited for are launched, where an engine can do that.
        """
        self.limits = limits
        self.launch, self._tokenizer, self._on_batch = launch, tokenizer, on_batch
        self._ahead, self._flights, self._landed = ahead, deque[_Flight](), 0.0
        self._arrived: queue.SimpleQueue[tuple[_Request, int] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._waiting_tokens, self._requests, self._lock = 0.0, 0, threading.Lock()
        self._tokens_per_s: float | None = None
        self._batch_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        self._thread.start()

    @property
    def load(self) -> Load:
        """What waits now."""
        return Load(self._requests, max(0.0, self._waiting_tokens), self._tokens_per_s)

    async def ask(self, texts: Sequence[Text], timeout_s: float) -> Answer:
        """Scores of some texts.

        Raises QueueFullError, DeadlineError after `timeout_s`, or what the engine raised. A caller
        that is cancelled takes its texts out of the queue.
        """
        guess = sum(len(part) for text in texts for part in text) / CHARACTERS_PER_TOKEN
        waiting = self._waiting_tokens
        if waiting and waiting + guess > self.limits.queue_tokens:
            raise QueueFullError(self.load.backlog_s)
        now, loop = time.monotonic(), asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        request = _Request(texts, future, now)
        request.scores, request.left = [[]] * len(texts), len(texts)
        self._count(1, guess)
        late = loop.call_later(timeout_s, _refuse, future, DeadlineError())
        try:
            for index in range(len(texts)):
                self._arrived.put((request, index))
            return await future
        finally:
            late.cancel()
            future.cancel()  # takes what is left of it out of the queue; nothing when it is done
            self._count(-1, -guess)

    def _count(self, requests: int, tokens: float) -> None:
        with self._lock:  # several event loops may ask
            self._requests += requests
            self._waiting_tokens += tokens

    def close(self) -> None:
        """End the thread after the batch that is running."""
        self._is_closed = True
        self._arrived.put(None)
        self._thread.join()

    def _run(self) -> None:
        pending: list[_Item] = []
        while not self._is_closed:
            pending += self._tokenise(is_idle=not pending)
            pending = [item for item in pending if not item.request.future.done()]
            if pending:
                pending = self._begin(pending)
            while len(self._flights) > (self._ahead if pending else 0):
                self._land(self._flights.popleft())

    def _tokenise(self, *, is_idle: bool) -> list[_Item]:
        """Rows of the texts that came, as many as one piece takes; waits for one when idle."""
        taken: list[tuple[_Request, int]] = []
        characters = 0
        while characters < PIECE_CHARACTERS and (arrived := self._next(may_wait=is_idle)):
            request, index = arrived
            if not request.future.done():
                taken.append(arrived)
                characters += sum(len(part) for part in request.texts[index])
            is_idle = False
        if not taken:
            return []
        try:
            rows = self._tokenizer.rows([request.texts[index] for request, index in taken])
        except Exception as error:  # noqa: BLE001 - told to those who asked; the thread goes on
            for request in {request for request, _ in taken}:
                loop = request.future.get_loop()
                loop.call_soon_threadsafe(_refuse, request.future, error)
            return []
        return [_Item(r, i, row, len(row)) for (r, i), row in zip(taken, rows, strict=True)]

    def _next(self, *, may_wait: bool) -> tuple[_Request, int] | None:
        """The text that came first, if there is one; None to wake up for the end."""
        if not may_wait and self._arrived.empty():
            return None
        arrived = self._arrived.get()
        if may_wait:
            time.sleep(self.limits.idle_wait_s)
        return arrived

    def _begin(self, pending: list[_Item]) -> list[_Item]:
        """Launch one batch; what is left."""
        begin = time.monotonic()
        is_late = begin - pending[0].request.began > PATIENCE * self._batch_s > 0
        chosen = pick([item.length for item in pending], self.limits, by_age=is_late)
        batch = [pending[index] for index in chosen]
        try:
            landing = self.launch([item.row for item in batch])
        except Exception as error:  # noqa: BLE001 - told to those who asked; the thread goes on
            _tell(batch, _Done([], error, begin, 0.0, len(batch)))
        else:
            self._flights.append(_Flight(batch, landing, begin))
        left = set(range(len(pending))) - set(chosen)
        return [pending[index] for index in sorted(left)]

    def _land(self, flight: _Flight) -> None:
        """Wait for a batch and hand out what it came to."""
        error: Exception | None = None
        scores: list[list[float]] = []
        try:
            found = flight.landing()
            scores = found.tolist()
            if not np.isfinite(found).all():
                error = ModelError("the model's scores are not numbers")
        except Exception as failure:  # noqa: BLE001 - told to those who asked; the thread goes on
            error = failure
        now = time.monotonic()
        # a batch that was launched ahead waited for the one before it
        spent_s, self._landed = now - max(flight.begin, self._landed), now
        rows, tokens = len(flight.items), sum(item.length for item in flight.items)
        self._learn(tokens, spent_s)
        if self._on_batch:
            self._on_batch(rows, tokens, spent_s)
        _tell(flight.items, _Done(scores, error, flight.begin, spent_s, rows))

    def _learn(self, tokens: int, spent_s: float) -> None:
        rate = tokens / max(spent_s, 1e-6)
        if self._tokens_per_s is None:
            self._tokens_per_s, self._batch_s = rate, spent_s
        self._tokens_per_s += SMOOTHING * (rate - self._tokens_per_s)
        self._batch_s += SMOOTHING * (spent_s - self._batch_s)


def _refuse(future: "asyncio.Future[Answer]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Done:
    """A batch that was run."""

    scores: list[list[float]]
    error: Exception | None
    begin: float
    infer_s: float
    rows: int


def _tell(batch: Sequence[_Item], done: _Done) -> None:
    """Those who asked, each on their event loop."""
    numbered = list(enumerate(batch))
    for loop in {item.request.future.get_loop() for item in batch}:
        own = [(n, item) for n, item in numbered if item.request.future.get_loop() is loop]
        loop.call_soon_threadsafe(_deliver, own, done)


def _deliver(items: Sequence[tuple[int, _Item]], done: _Done) -> None:
    """On an event loop, once for each batch: the rows that were asked for from there."""
    for number, item in items:
        request = item.request
        if request.future.done():
            continue
        if done.error is not None:
            request.future.set_exception(done.error)
            continue
        request.scores[item.index] = done.scores[number]
        request.is_cut |= item.row.is_cut
        request.left -= 1
        if not request.left:
            waited_s = done.begin - request.began
            request.future.set_result(
                Answer(request.scores, request.is_cut, done.rows, waited_s, done.infer_s)
            )
