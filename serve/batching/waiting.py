"""How long a free engine waits for the clients that it has just answered."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NEARLY_ALL = 0.9
"""Share of the answered inputs that has to be back for a wait to have succeeded."""
LONGEST_PAUSE = 64
"""Most batches that are left out between two waits. Where clients do not wait for answers, about
one batch in so many waits for nobody."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The seconds that one batch saves over two of half its size, measured as a model is loaded."""

    tokens: tuple[float, ...]
    """Tokens of the measured batches, ascending."""
    seconds: tuple[float, ...]

    def of(self, tokens: float) -> float:
        """Returns the saving of a batch, in seconds."""
        return float(np.interp(tokens, self.tokens, self.seconds))


NOTHING = Saving((0.0,), (0.0,))
"""The saving of an engine that never waits."""


class Waiting:
    """Decides how long a free engine waits for the clients that it has just answered.

    Clients that send their next request once they are answered fall into groups that take turns:
    while the engine computes for one, the other waits, and each pays the fixed cost of a batch. So
    a free engine waits until as many inputs are back as it answered last, for at most the seconds
    that one batch of all saves. After a wait in vain it leaves out one batch before it waits
    again; each further wait in vain doubles that number, and each other wait halves it.
    """

    def __init__(self, saving: Saving) -> None:
        self.saving = saving
        self._answered: Sequence[int] = ()
        self._back = self._pause = self._left_out = 0
        self._are_back, self._lock = threading.Event(), threading.Lock()

    @property
    def missing(self) -> Sequence[int]:
        """Tokens of the inputs that were answered last and are not back."""
        return self._answered[self._back :]

    def answered(self, lengths: Sequence[int]) -> None:
        """Takes note that inputs of so many tokens are answered."""
        with self._lock:
            self._answered, self._back = lengths, 0
            self._are_back.clear()

    def arrived(self, inputs: int) -> None:
        """Takes note of inputs that arrived; called on any event loop."""
        with self._lock:
            self._back += inputs
            if self._back >= len(self._answered):
                self._are_back.set()

    def is_due(self, missing: int, tokens: float) -> bool:
        """Returns whether to wait now.

        Args:
            missing: Inputs that were answered last and are not back.
            tokens: Tokens of the batch if all of them come back.
        """
        if not missing or not self.saving.of(tokens):
            return False
        self._left_out += 1
        return self._left_out > self._pause

    def wait(self, tokens: float) -> None:
        """Waits until as many inputs are back as were answered last, or the time is over."""
        self._are_back.wait(self.saving.of(tokens))
        is_in_vain = self._back < NEARLY_ALL * len(self._answered)
        doubled = min(max(1, 2 * self._pause), LONGEST_PAUSE)
        self._pause = doubled if is_in_vain else self._pause // 2
        self._left_out = 0
