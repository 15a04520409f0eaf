"""Brings pieces of answers from the thread that writes them to the event loops that send them."""

import asyncio
import collections
import contextlib
from collections.abc import Iterator, Sequence

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


def _deliver_in(loop: asyncio.AbstractEventLoop, letters: Sequence[Letter]) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(_deliver, letters)


def _deliver(letters: Sequence[Letter]) -> None:
    for pieces, piece in letters:
        pieces.put_nowait(piece)
