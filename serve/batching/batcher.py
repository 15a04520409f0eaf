"""Requests to batches: formed the moment the engine is free.

No timer and no early sealing: an idle engine takes a lone text at once, a busy one finds company
for it meanwhile. `serve.batching.policy` says which texts go together, `serve.batching.waiting`
when it pays to wait for those who were just answered, or for the rest of a burst.
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
from serve.batching.policy import Limits, block, is_full, is_one
from serve.batching.rows import PendingBatch, Row, Text, Tokenizer
from serve.batching.waiting import NOTHING, Returning, Saving

_logger = logging.getLogger(__name__)

PIECE_CHARACTERS = 65_536
"""Most text that is tokenised between two batches, so that a huge request holds nobody up."""
SWITCH_S = 2e-4
"""How long the event loop may keep the interpreter while the engine wants it. With Python's own
5 ms the engine idles after each batch: 5 to 10 % fewer texts; with 0.1 ms a request that is all
framework costs 10 % more. See benchmarks/HISTORY.md."""
QUICK_S = 1e-3
"""A batch that took less is told of at once: then the event loop is what all wait for."""
SMOOTHING = 0.1
"""Weight of the newest batch in the averages that the rate comes from."""


Input = Text | Row
"""A text, or one that was tokenised elsewhere."""

OnBatch = Callable[[int, int, float], None]
"""Is told rows, tokens and seconds of each batch."""


@dataclass(slots=True, eq=False)
class Request:
    """Some inputs that were asked about from one event loop, and what is known of them so far."""

    inputs: Sequence[Input]
    loop: asyncio.AbstractEventLoop
    reply: Callback
    """Called on the loop, with the answer or why there is none."""
    began: float
    tokens: float
    """Guessed from the characters."""
    scores: list[list[float]]
    left: int
    is_over: bool = False
    """Whether nobody waits for the answer any more."""
    read: int = 0
    """Inputs that the engine's thread has tokenised."""
    is_cut: bool = False
    late: asyncio.TimerHandle | None = None
    """Tells that the time is over."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    request: Request
    index: int
    row: Row
    length: int
    """Of the row, in tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A batch that the engine has begun with."""

    items: Sequence[_Item]
    landing: PendingBatch
    begin: float


class Batcher(InferenceClient):
    """An engine on its own thread, asked from an event loop."""

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
        """`launch` begins with some rows; what it returns gives their scores as [rows, labels].

        `on_batch` is told rows, tokens and seconds of each batch, from the engine's thread. So many
        batches `ahead` of the one that is waited for are launched, where an engine can do that.
        `saving` is what one batch costs less than two.
        """
        self.limits = limits
        self.launch, self.tokenizer, self._on_batch = launch, tokenizer, on_batch
        self._ahead, self._flights, self._landed = ahead, deque[_InFlight](), 0.0
        self._untold: tuple[Sequence[_Item], _Done] | None = None
        """A batch that is done, until the next one is under way."""
        self._saving, self._returning, self._all_back = saving, Returning(), threading.Event()
        self._arrived: queue.SimpleQueue[Sequence[Request] | None] = queue.SimpleQueue()
        """Of one turn of an event loop each, so that they go together."""
        self._came = deque[Request]()
        """What was taken from there and not opened yet."""
        self._gathered: dict[asyncio.AbstractEventLoop, list[Request]] = {}
        """What came within this turn of an event loop, of which the engine is told at its end."""
        self._opened: Request | None = None
        """What is being tokenised, a piece at a time."""
        self._is_closed = False
        self._waiting_tokens, self._requests, self._lock = 0.0, 0, threading.Lock()
        self._batch_tokens, self._batch_s = 0.0, 0.0
        """Of a batch, on average."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    @property
    def load(self) -> Load:
        """What waits now."""
        rate = self._batch_tokens / self._batch_s if self._batch_s else None
        return Load(self._requests, max(0.0, self._waiting_tokens), rate)

    def start(self, inputs: Sequence[Input], timeout_s: float, reply: Callback) -> Request:
        """Let some inputs wait; see `InferenceClient`."""
        loop = asyncio.get_running_loop()
        request = self.submit(inputs, loop, reply, time.monotonic())
        request.late = loop.call_later(timeout_s, reply, DeadlineError())
        return request

    def submit(
        self,
        inputs: Sequence[Input],
        loop: asyncio.AbstractEventLoop,
        reply: Callback,
        began: float,
    ) -> Request:
        """Let some inputs wait; `reply` is called on the loop. Each ends with a `leave`.

        Raises QueueFullError.
        """
        tokens = sum(map(_characters, inputs)) / CHARACTERS_PER_TOKEN
        waiting, count = self._waiting_tokens, len(inputs)
        if waiting and waiting + tokens > self.limits.queue_tokens:
            raise QueueFullError(self.load.backlog_s)
        request = Request(inputs, loop, reply, began, tokens, [[]] * count, count)
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

    def leave(self, asked: Request) -> None:
        """Nobody waits for a request any more: what is left of it is not run."""
        if not asked.is_over:
            asked.is_over = True
            self._count(-1, -asked.tokens)
            if asked.late:
                asked.late.cancel()

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
        batches: deque[list[_Item]] = deque()  # of the block that is being worked off
        while not self._is_closed:
            is_idle = not pending and not batches
            pending += self._tokenise(is_idle=is_idle)
            if not batches:
                pending = _wanted(self._with_company(pending, is_idle=is_idle))
                chosen = block(_lengths(pending), self.limits) if pending else []
                batches.extend([pending[index] for index in batch] for batch in chosen)
                taken = {index for batch in chosen for index in batch}
                pending = [item for index, item in enumerate(pending) if index not in taken]
            if batches:
                self._begin(_wanted(batches.popleft()))
            while len(self._flights) > (self._ahead if batches or pending else 0):
                self._wait(self._flights.popleft())
        while self._flights:
            self._wait(self._flights.popleft())
        self._tell()

    def _with_company(self, pending: list[_Item], *, is_idle: bool) -> list[_Item]:
        """What is pending, with more where that pays: those who were just answered, or a burst."""
        if not pending or self._saving is NOTHING:
            return pending
        # an idle engine has told of its last batch: what is pending came after that
        away = (
            _lengths(self._untold[0]) if self._untold else self._returning.answered[len(pending) :]
        )
        lengths = [*_lengths(pending), *away]
        saved_s = self._saving.of(sum(lengths))
        if self._returning.pays(saved_s) and is_one(lengths, self.limits):
            self._tell()
            # woken once: to tokenise each as it comes would keep the interpreter from the loop
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
        if is_full(lengths := _lengths(pending), self.limits):
            return 0.0
        came = [request.began for request in {item.request for item in pending}]
        return self._returning.burst_left_s(came, time.monotonic(), self._saving, sum(lengths))

    def _tokenise(self, *, is_idle: bool) -> list[_Item]:
        """Rows of the texts that came, as many as one piece takes; waits for one when idle."""
        taken: list[tuple[Request, int]] = []
        characters = 0.0
        while characters < PIECE_CHARACTERS and (request := self._next(may_wait=is_idle)):
            is_idle = False
            while characters < PIECE_CHARACTERS and request.read < len(request.inputs):
                taken.append((request, request.read))
                characters += _characters(request.inputs[request.read])
                request.read += 1
            self._opened = request if request.read < len(request.inputs) else None
        if not taken:
            return []
        try:
            rows = self._rows([request.inputs[index] for request, index in taken])
        except Exception:
            _logger.exception("%d texts could not be tokenised", len(taken))
            for request in {request for request, _ in taken}:
                request.loop.call_soon_threadsafe(request.reply, InternalError())
            return []
        return [_Item(r, i, row, len(row)) for (r, i), row in zip(taken, rows, strict=True)]

    def _rows(self, inputs: Sequence[Input]) -> list[Row]:
        texts = [found for found in inputs if not isinstance(found, Row)]
        made = iter(self.tokenizer.rows(texts)) if texts else iter(())
        return [found if isinstance(found, Row) else next(made) for found in inputs]

    def _next(self, *, may_wait: bool) -> Request | None:
        """The first request that is still wanted, if one is there; None to wake up for the end."""
        while self._opened is None or self._opened.is_over:
            if not self._came and not self._get(may_wait=may_wait):
                self._opened = None
                return None
            self._opened = self._came.popleft()
        return self._opened

    def _get(self, *, may_wait: bool) -> bool:
        """Take what came; whether that was something, and not just to wake up for the end."""
        if self._arrived.empty():
            if not may_wait:
                return False
            self._tell()  # there is no batch to lay out before
        self._came.extend(self._arrived.get() or ())
        if may_wait and self._came and self.limits.idle_wait_s:  # 0 s gives the interpreter away
            self._tell()
            time.sleep(self.limits.idle_wait_s)
        return bool(self._came)

    def _begin(self, batch: list[_Item]) -> None:
        """Launch one batch, if somebody still wants it."""
        if not batch:
            return
        begin = time.monotonic()
        try:
            landing = self.launch([item.row for item in batch])
        except Exception:
            _logger.exception("a batch of %d texts could not be launched", len(batch))
            self._tell()
            self._untold = batch, _Done([], InternalError(), begin, 0.0, len(batch))
        else:
            self._flights.append(_InFlight(batch, landing, begin))

    def _wait(self, flight: _InFlight) -> None:
        """Wait for a batch.

        Those of the batch before are told now: told earlier, the event loop would have kept the
        interpreter from this thread while it laid this one out.
        """
        self._tell()
        error: Exception | None = None
        scores: list[list[float]] = []
        try:
            found = flight.landing()
            scores = found.tolist()
            if not np.isfinite(found).all():
                error = NonFiniteScoresError("the model's scores are not numbers")
        except Exception:
            _logger.exception("a batch of %d texts failed", len(flight.items))
            error = InternalError()
        now = time.monotonic()
        # a batch that was launched ahead waited for the one before it
        spent_s, self._landed = now - max(flight.begin, self._landed), now
        rows, tokens = len(flight.items), sum(_lengths(flight.items))
        self._learn(tokens, spent_s)
        if self._on_batch:
            self._on_batch(rows, tokens, spent_s)
        self._untold = flight.items, _Done(scores, error, flight.begin, spent_s, rows)
        if spent_s < QUICK_S:
            self._tell()

    def _tell(self) -> None:
        """Those who asked for what is done, each on their event loop."""
        if not self._untold:
            return
        (batch, done), self._untold = self._untold, None
        with self._lock:
            self._returning.told(_lengths(batch), time.monotonic())
            self._all_back.clear()
        numbered = list(enumerate(batch))
        for loop in {item.request.loop for item in batch}:
            own = [(n, item) for n, item in numbered if item.request.loop is loop]
            loop.call_soon_threadsafe(_deliver, own, done)

    def _learn(self, tokens: int, spent_s: float) -> None:
        # not an average of rates: of two batches that are seen to land at once, one took no time
        weight = SMOOTHING if self._batch_s else 1.0
        self._batch_tokens += weight * (tokens - self._batch_tokens)
        self._batch_s += weight * (spent_s - self._batch_s)


def _wanted(items: list[_Item]) -> list[_Item]:
    """Without those whose client left, or whose time is over."""
    return [item for item in items if not item.request.is_over]


def _lengths(items: Sequence[_Item]) -> list[int]:
    return [item.length for item in items]


def _characters(found: Input) -> float:
    """Of an input, or of a text with as many tokens."""
    return len(found) * CHARACTERS_PER_TOKEN if isinstance(found, Row) else sum(map(len, found))


@dataclass(frozen=True, slots=True)
class _Done:
    """A batch that was run."""

    scores: list[list[float]]
    error: Exception | None
    begin: float
    infer_s: float
    rows: int


def _deliver(items: Sequence[tuple[int, _Item]], done: _Done) -> None:
    """On an event loop, once for each batch: the rows that were asked for from there."""
    for number, item in items:
        request = item.request
        if request.is_over:
            continue
        if done.error is not None:
            request.reply(done.error)
            continue
        request.scores[item.index] = done.scores[number]
        request.is_cut |= item.row.is_cut
        request.left -= 1
        if not request.left:
            waited_s = done.begin - request.began
            request.reply(Answer(request.scores, request.is_cut, done.rows, waited_s, done.infer_s))
