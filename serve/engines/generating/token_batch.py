"""What engines that write tokens have in common: a batch of rows that grow by a token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from serve.engines.generating.adapters import HeldAdapter


class CacheTooSmallError(Exception):
    """A text that the key-value cache could not hold if it were alone."""

    def __init__(self, tokens: int, room: int) -> None:
        super().__init__(f"{tokens:,} tokens: the cache of this replica holds {room:,}")


@dataclass(slots=True, eq=False)
class Prompt:
    """A prompt that has its place in the cache, and is read or will be."""

    ids: Sequence[int]
    most_tokens: int
    """Tokens of the prompt, and most tokens behind it."""
    adapter: HeldAdapter | None = None
    start: int = 0
    """First place in the cache, where rows have places of their own."""
    read: int = field(default=0, init=False)
    """Tokens whose keys and values are in the cache."""
    taken_over: int = field(default=0, init=False)
    """Those of them that were there before."""
    is_being_read: bool = field(default=False, init=False)
    """Whether some of its tokens were read for it."""


class TokenBatch(Protocol):
    """Rows of tokens with their key-value cache; a row is known by its place.

    All calls come from one thread.
    """

    name: str
    """What `engine` of a replica says."""
    looks_ahead: bool
    """Whether a step begins before the host has seen the tokens of the step before it."""

    @property
    def use(self) -> float:
        """Share of the cache that the rows may fill."""
        ...

    def begin(
        self, ids: Sequence[int], most_tokens: int, adapter: HeldAdapter | None = None
    ) -> Prompt | None:
        """Gives a prompt its place; None while there is no room.

        Its row is computed with the adapter, if it has one.

        Raises:
            CacheTooSmallError: if there never is.
        """
        ...

    def read(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], torch.Tensor]:
        """Reads the next tokens of prompts that have begun, the first ones first.

        Returns those that are complete now, each of which has become a row at the end, and the
        logits of the token behind each, (complete prompts, vocabulary) in fp32.
        """
        ...

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Adds a token to each row; `tokens` are (rows,).

        Returns the logits of the token behind it, (rows, vocabulary) in fp32. The next step may
        overwrite them.
        """
        ...

    def keep(self, places: Sequence[int]) -> None:
        """Keeps these rows alone, in this order."""
        ...

    def drop(self, prompts: Sequence[Prompt]) -> None:
        """Takes back the places of prompts that are not complete."""
        ...

    def clear(self) -> None:
        """Drops all rows and prompts, such as after an error."""
        ...
