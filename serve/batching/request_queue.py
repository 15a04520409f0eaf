"""The queue of requests: event loops put them in, the engine's thread takes their rows out."""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from jobs.training.config import CHARACTERS_PER_TOKEN
from serve.batching.client import Callback, InternalError
from serve.batching.requests import Item, Request, characters_of
from serve.batching.rows import Input, Row, Tokenizer

_logger = logging.getLogger(__name__)

PIECE_CHARACTERS = 65_536
"""Most characters that are tokenised between two batches, so that a very long request does not
delay the others."""


class RequestQueue:
    """Requests of several event loops for one engine's thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        idle_wait_s: Callable[[], float],
        on_arrival: Callable[[int], None],
        on_idle: Callable[[], None],
    ) -> None:
        """Creates an empty queue.

        Args:
            tokenizer: Tokenises texts on the engine's thread.
            idle_wait_s: Returns how long to wait for further requests after the first one that an
                idle engine takes; asked at each first one, because limits change.
            on_arrival: Called on an event loop with the inputs that its requests brought.
            on_idle: Called on the engine's thread before it blocks.
        """
        self.tokenizer, self._idle_wait_s = tokenizer, idle_wait_s
        self._on_arrival, self._on_idle = on_arrival, on_idle
        self.waiting_tokens, self.requests, self._lock = 0.0, 0, threading.Lock()
        self._arrived: queue.SimpleQueue[Sequence[Request] | None] = queue.SimpleQueue()
        """Requests for the engine's thread; each element has those of one turn of an event loop, so
        that they share a batch. None wakes the thread up."""
        self._received = deque[Request]()
        """Requests taken from `_arrived` that are not tokenised yet."""
        self._gathered: dict[asyncio.AbstractEventLoop, list[Request]] = {}
        """Requests of the current turn of each event loop; put into `_arrived` at its end."""
        self._opened: Request | None = None
        """Request whose inputs are being tokenised."""

    def put(
        self,
        inputs: Sequence[Input],
        loop: asyncio.AbstractEventLoop,
        on_answered: Callback,
        began: float,
    ) -> Request:
        """Adds a request; see `Batcher.submit`."""
        tokens, count = tokens_of(inputs), len(inputs)
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
        self._on_arrival(sum(len(request.inputs) for request in gathered))

    def end(self, request: Request) -> None:
        """Ends a request: its rows that were not taken yet are left out."""
        if not request.is_ended:
            request.is_ended = True
            self._count(-1, -request.tokens)
            if request.timer:
                request.timer.cancel()

    def _count(self, requests: int, tokens: float) -> None:
        with self._lock:  # several event loops may call this
            self.requests += requests
            self.waiting_tokens += tokens

    def wake(self) -> None:
        """Wakes up an engine's thread that waits in `take`."""
        self._arrived.put(None)

    def take(self, *, may_wait: bool) -> list[Item]:
        """Returns tokenised rows of the arrived requests, up to PIECE_CHARACTERS.

        With `may_wait` it waits for the first request, if none has arrived.
        """
        taken: list[tuple[Request, int]] = []
        characters = 0.0
        while characters < PIECE_CHARACTERS and (request := self._next(may_wait=may_wait)):
            may_wait = False
            while characters < PIECE_CHARACTERS and request.tokenised < len(request.inputs):
                taken.append((request, request.tokenised))
                characters += characters_of(request.inputs[request.tokenised])
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
        return [Item(r, i, row, len(row)) for (r, i), row in zip(taken, rows, strict=True)]

    def _rows(self, inputs: Sequence[Input]) -> list[Row]:
        texts = [item for item in inputs if not isinstance(item, Row)]
        rows = iter(self.tokenizer.rows(texts)) if texts else iter(())
        return [item if isinstance(item, Row) else next(rows) for item in inputs]

    def _next(self, *, may_wait: bool) -> Request | None:
        """Returns the first request that has not ended.

        Returns None if there is none; with `may_wait` only after `wake`.
        """
        while self._opened is None or self._opened.is_ended:
            if not self._received and not self._receive(may_wait=may_wait):
                self._opened = None
                return None
            self._opened = self._received.popleft()
        return self._opened

    def _receive(self, *, may_wait: bool) -> bool:
        """Takes arrived requests; returns False if there are none."""
        if self._arrived.empty():
            if not may_wait:
                return False
            self._on_idle()
        self._received.extend(self._arrived.get() or ())
        idle_wait_s = self._idle_wait_s() if may_wait and self._received else 0.0
        if idle_wait_s:  # sleep(0) releases the GIL
            self._on_idle()
            time.sleep(idle_wait_s)
        return bool(self._received)


def tokens_of(inputs: Sequence[Input]) -> float:
    """Returns the tokens of inputs, estimated from their characters."""
    return sum(map(characters_of, inputs)) / CHARACTERS_PER_TOKEN
