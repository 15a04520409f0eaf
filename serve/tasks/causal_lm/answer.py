"""An answer of a language model while it is written: its settings, its tokens, and its text."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from serve.tasks.generating.schemas import Finish

UNFINISHED = "\ufffd"
"""The replacement character, which a tokenizer returns for an incomplete UTF-8 character."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling parameters of one answer."""

    most_tokens: int
    temperature: float = 1.0
    """0 always selects the most likely token."""
    top_p: float = 1.0
    stops: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: the text generated since the last piece."""

    text: str
    tokens: int
    """Tokens of the answer so far."""
    finish: Finish | None = None
    """Why the answer ended; set in the last piece only."""


class Writer:
    """Decodes tokens as they are generated, and decides when the answer ends."""

    def __init__(
        self,
        tokenizer: Any,
        settings: Settings,
        ends: frozenset[int],
        on_piece: Callable[[Piece], None],
    ) -> None:
        """Args: the tokenizer, the answer's settings, the tokens that end it, and who reads it."""
        self._tokenizer, self._settings, self._ends = tokenizer, settings, ends
        self._on_piece = on_piece
        self.ids: list[int] = []
        self._text = ""
        self._sent = 0
        """Characters sent so far."""
        self._context = self._decoded = 0
        """The first token that others are decoded behind, and the tokens whose text is known."""
        self.is_stopped = False
        """Whether a stop text has ended the answer."""
        self._withheld = max((len(stop) for stop in settings.stops), default=1) - 1
        """Last characters that are not sent yet because a stop text may begin in them."""

    @property
    def has_ended(self) -> bool:
        """Whether the model or a stop text has ended the answer, or its tokens have run out."""
        return self._is_done or len(self.ids) >= self._settings.most_tokens

    @property
    def _is_done(self) -> bool:
        return self.is_stopped or (bool(self.ids) and self.ids[-1] in self._ends)

    def put(self, token: int) -> None:
        """Takes the next token, and sends the text that is certain."""
        self.ids.append(token)
        self._decode()
        positions = [self._text.find(stop) for stop in self._settings.stops]
        cuts = [position for position in positions if position >= 0]
        if cuts:
            self._text, self.is_stopped = self._text[: min(cuts)], True
        end = len(self._text) if self.is_stopped else len(self._text) - self._withheld
        if end > self._sent:
            self._on_piece(Piece(self._text[self._sent : end], len(self.ids)))
            self._sent = end

    def _decode(self) -> None:
        """Adds the text of the last tokens, decoded behind those before them, which it depends on.

        The time does not grow with the answer.
        """

        def text(end: int) -> str:
            ids = self.ids[self._context : end]
            found: str = self._tokenizer.decode(ids, skip_special_tokens=True)
            return found

        known, whole = text(self._decoded), text(len(self.ids))
        if len(whole) > len(known) and not whole.endswith(UNFINISHED):
            self._text += whole[len(known) :]
            self._context, self._decoded = self._decoded, len(self.ids)

    def finish(self) -> None:
        """Sends the last piece, with the reason why the answer ended."""
        finish: Finish = "stop" if self._is_done else "length"
        self._on_piece(Piece(self._text[self._sent :], len(self.ids), finish))


async def whole(pieces: AsyncGenerator[Piece]) -> tuple[str, Piece]:
    """Returns the text of an answer, and its last piece."""
    async with contextlib.aclosing(pieces):
        known = [piece async for piece in pieces]
    return "".join(piece.text for piece in known), known[-1]
