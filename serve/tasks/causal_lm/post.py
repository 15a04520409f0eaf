"""Brings pieces of answers from the thread that writes them to the event loops that send them."""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Protocol

from serve.batching.client import DeadlineError
from serve.tasks.causal_lm.answer import Piece

Pieces = asyncio.Queue[Piece | Exception]
"""Pieces of one answer that its client waits for."""
Letter = tuple[Pieces, Piece | Exception]


class Post:
    """Sends pieces into event loops; those of a step of all answers go together."""

    def __init__(self) -> None:
        self._held: dict[asyncio.AbstractEventLoop, list[Letter]] | None = None

    def send(
        self, loop: asyncio.AbstractEventLoop, pieces: Pieces, piece: Piece | Exception
    ) -> None:
        """Sends a piece at once, or when those that are held are sent. Called by one thread."""
        if self._held is None:
            _deliver_in(loop, [(pieces, piece)])
        else:
            self._held[loop].append((pieces, piece))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds pieces inside, and sends them at the end."""
        self._held = collections.defaultdict(list)
        try:
            yield
        finally:
            held, self._held = self._held, None
            for loop, letters in held.items():
                _deliver_in(loop, letters)


class Awaited(Protocol):
    """An answer that a client waits for."""

    deadline: float
    """On the monotonic clock."""
    has_begun: bool
    """Whether it waits no more for its turn."""


async def arriving(pieces: Pieces, job: Awaited) -> AsyncGenerator[Piece]:
    """Yields the pieces of an answer up to its last one; raises an error that comes instead.

    Raises:
        DeadlineError: at the deadline of a job that still waits for its turn.
    """
    while True:
        piece = together(await _next(pieces, job), pieces)
        if isinstance(piece, Exception):
            raise piece
        yield piece
        if piece.finish:
            return


def together(first: Piece | Exception, pieces: Pieces) -> Piece | Exception:
    """Joins a piece with those that already wait, so that a slow client gets fewer and larger."""
    while isinstance(first, Piece) and not first.finish and not pieces.empty():
        following = pieces.get_nowait()
        if isinstance(following, Exception):
            pieces.put_nowait(following)  # nothing comes behind an error
            break
        logprobs = (*first.logprobs, *following.logprobs)
        first = Piece(first.text + following.text, following.tokens, following.finish, logprobs)
    return first


async def _next(pieces: Pieces, job: Awaited) -> Piece | Exception:
    """Returns the next piece; an error at the deadline of a job that still waits then."""
    if job.has_begun:
        return await pieces.get()
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(pieces.get(), job.deadline - time.monotonic())
    return await pieces.get() if job.has_begun else DeadlineError()


def _deliver_in(loop: asyncio.AbstractEventLoop, letters: Sequence[Letter]) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(_deliver, letters)


def _deliver(letters: Sequence[Letter]) -> None:
    for pieces, piece in letters:
        pieces.put_nowait(piece)
