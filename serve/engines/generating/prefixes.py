"""Beginnings of prompts whose keys and values are in the cache, of rows that are there or were."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LEAST = 128
"""Fewest tokens that are worth looking for."""
MOST = 256
"""Most prompts that are remembered."""

Ids = npt.NDArray[np.int64]


class Prefixes:
    """Prompts by their first place in the cache; the newest come last."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Ids, str]] = {}
        """Tokens of a prompt, and the name of its adapter."""

    def remember(self, ids: Sequence[int], start: int, adapter: str = "") -> None:
        """Remembers a prompt that was read into the places from `start` on, with an adapter."""
        self._known.pop(start, None)
        if len(ids) > LEAST:
            self._known[start] = np.asarray(ids, dtype=np.int64), adapter
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    def forget(self, first: int, size: int) -> None:
        """Forgets the prompts in these places, which are taken by another."""
        for start, (ids, _) in tuple(self._known.items()):
            if start < first + size and first < start + len(ids):
                del self._known[start]

    def size(self, start: int) -> int:
        """Returns the number of tokens of the prompt that begins at a place."""
        return len(self._known[start][0])

    def longest(self, ids: Sequence[int], adapter: str = "") -> tuple[int, int]:
        """Returns the first place of the longest known beginning, and its tokens; 0 if none.

        Only prompts with the same adapter have the same keys and values. The last token of a prompt
        is always read, because its logits are asked for.
        """
        if len(ids) <= LEAST or not self._known:
            return 0, 0
        wanted = np.asarray(ids[:-1], dtype=np.int64)
        count, start = max(
            (
                (common(wanted, known), start)
                for start, (known, its) in self._known.items()
                if its == adapter
            ),
            default=(0, 0),
        )
        return (start, count) if count >= LEAST else (0, 0)


def common(one: Ids, other: Ids) -> int:
    """Returns the number of first tokens that both have in common."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size
