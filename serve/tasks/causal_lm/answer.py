"""An answer of a language model while it is written: its settings, its tokens, and its text."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from serve.tasks.causal_lm.vocabulary import Grammar
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
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that it occurs in the answer."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of a token that occurs in the answer."""
    repetition_penalty: float | None = None
    """Divides positive logits of tokens that occur in prompt or answer; None for the model's."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of tokens."""
    top_k: int = 0
    """Likeliest tokens of which one is drawn; 0 or less for all."""
    min_p: float = 0.0
    """Least probability of a token that is drawn, as a share of the likeliest one's."""
    min_tokens: int = 0
    """The end token is not selected before."""
    ignores_end: bool = False
    """Whether the answer goes on behind an end token."""
    logprobs: int | None = None
    """Likeliest tokens whose log-probability comes with each token; None for no probabilities."""
    grammar: Grammar | None = None
    """Grammar of the answer."""
    shows_special: bool = False
    """Whether the text has special tokens too, except for those that end the answer."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of a token of an answer."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]
    """The likeliest tokens in its place with their log-probabilities, in falling order."""
    start: int = 0
    """Characters of the answer before it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: the text generated since the last piece."""

    text: str
    tokens: int
    """Tokens of the answer so far."""
    finish: Finish | None = None
    """Why the answer ended; set in the last piece only."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens whose text begins in this piece, if they are asked for."""


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
        self._tokenizer, self._settings = tokenizer, settings
        self._ends = frozenset[int]() if settings.ignores_end else ends
        self._on_piece = on_piece
        self._logprobs: list[TokenLogprob] = []
        """Of tokens whose text is not sent yet."""
        self.ids: list[int] = []
        self._text = ""
        self._sent = 0
        """Characters sent so far."""
        self._context = self._decoded = 0
        """The first token that others are decoded behind, and the tokens whose text is known."""
        self.is_stopped = False
        """Whether a stop text, or the end of the grammar, has ended the answer."""
        self._withheld = max((len(stop) for stop in settings.stops), default=1) - 1
        """Last characters that are not sent yet because a stop text may begin in them."""

    @property
    def has_ended(self) -> bool:
        """Whether the model or a stop text has ended the answer, or its tokens have run out."""
        return self._is_done or len(self.ids) >= self._settings.most_tokens

    @property
    def _is_done(self) -> bool:
        return self.is_stopped or (bool(self.ids) and self.ids[-1] in self._ends)

    def put(
        self, token: int, logprob: TokenLogprob | None = None, *, is_complete: bool = False
    ) -> None:
        """Takes the next token, and sends the text that is certain.

        `is_complete` says that nothing may follow but the answer's end. Tokens behind the end are
        passed over.
        """
        if self._is_done:
            return
        self.ids.append(token)
        if token in self._ends:
            return
        if logprob is not None:
            self._logprobs.append(replace(logprob, start=len(self._text)))
        self._decode()
        self.is_stopped = is_complete
        positions = [self._text.find(stop) for stop in self._settings.stops]
        cuts = [position for position in positions if position >= 0]
        if cuts:
            self._text, self.is_stopped = self._text[: min(cuts)], True
        end = len(self._text) if self.is_stopped else len(self._text) - self._withheld
        if end > self._sent:
            self._send(end)

    def _send(self, end: int, finish: Finish | None = None) -> None:
        """Sends the text up to a character, and the log-probabilities of what begins in it."""
        known = sum(each.start < end for each in self._logprobs)
        if finish == "length":  # the last token may be a part of a character
            known = len(self._logprobs)
        found, self._logprobs = tuple(self._logprobs[:known]), self._logprobs[known:]
        text, self._sent = self._text[self._sent : end], end
        self._on_piece(Piece(text, len(self.ids), finish, found))

    def _decode(self) -> None:
        """Adds the text of the last tokens, decoded behind those before them, which it depends on.

        The time does not grow with the answer.
        """

        def text(end: int) -> str:
            ids = self.ids[self._context : end]
            skips = not self._settings.shows_special
            found: str = self._tokenizer.decode(ids, skip_special_tokens=skips)
            return found

        known, whole = text(self._decoded), text(len(self.ids))
        if len(whole) > len(known) and not whole.endswith(UNFINISHED):
            self._text += whole[len(known) :]
            self._context, self._decoded = self._decoded, len(self.ids)

    def finish(self) -> None:
        """Sends the last piece, with the reason why the answer ended."""
        self._send(len(self._text), "stop" if self._is_done else "length")
