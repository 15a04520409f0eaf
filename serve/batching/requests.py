"""A request in the batcher, its rows, and how the scores of a batch become answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.training.config import CHARACTERS_PER_TOKEN
from serve.batching.client import Answer, Callback
from serve.batching.rows import Input, Row


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
    scores: list[Any]
    unscored: int
    """Inputs without scores yet."""
    is_ended: bool = False
    """True once the request is answered, cancelled or timed out: its remaining rows are skipped."""
    tokenised: int = 0
    """Inputs that the engine's thread has tokenised."""
    is_cut: bool = False
    counted: int = 0
    """Tokens of the scored inputs."""
    timer: asyncio.TimerHandle | None = None
    """Calls `on_answered` with DeadlineError."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One row of a request."""

    request: Request
    index: int
    """Position of the row in its request."""
    row: Row
    length: int
    """Tokens of the row."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The scores of a batch, or the error that takes their place."""

    items: Sequence[Item]
    scores: Sequence[Any]
    error: Exception | None
    begin: float
    """Start of the batch by the monotonic clock, in seconds."""
    infer_s: float
    """Duration of the batch."""

    def deliver(self) -> None:
        """Passes the result to the event loops of its requests."""
        numbered = list(enumerate(self.items))
        for loop in {item.request.loop for item in self.items}:
            own = [(number, item) for number, item in numbered if item.request.loop is loop]
            loop.call_soon_threadsafe(self._answer, own)

    def _answer(self, numbered: Sequence[tuple[int, Item]]) -> None:
        """Stores scores in their requests, and answers the complete ones.

        Runs on the requests' event loop, once for each batch. Each item has its row number in
        front.
        """
        for number, item in numbered:
            request = item.request
            if request.is_ended:
                continue
            if self.error is not None:
                request.on_answered(self.error)
                continue
            request.scores[item.index] = self.scores[number]
            request.is_cut |= item.row.is_cut
            request.counted += item.length
            request.unscored -= 1
            if not request.unscored:
                queue_s, rows = self.begin - request.began, len(self.items)
                times = queue_s, self.infer_s
                request.on_answered(
                    Answer(request.scores, request.is_cut, rows, *times, request.counted)
                )


def active(items: Sequence[Item]) -> list[Item]:
    """Returns the items whose requests have not ended."""
    return [item for item in items if not item.request.is_ended]


def lengths_of(items: Sequence[Item]) -> list[int]:
    """Returns the tokens of each item."""
    return [item.length for item in items]


def characters_of(item: Input) -> float:
    """Returns the characters of an input, estimated for a row from its tokens."""
    return len(item) * CHARACTERS_PER_TOKEN if isinstance(item, Row) else sum(map(len, item))
