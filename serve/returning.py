"""How long an idle engine waits for those whom it just answered, so that two batches become one.

Clients that ask again once they are answered fall into groups by turns: while one group is run the
other waits. Where running a batch costs much whatever is in it, as the weights of a large model are
read for each, one batch of all is cheaper than one of each group.
"""

from collections import deque
from dataclasses import dataclass, field

LEAST_SHARE = 0.9
"""Of the inputs that were answered, how many are nearly all. Waiting pays if they come again within
what a batch costs whatever is in it: that is saved. Where clients do not wait for answers that is
rare, as every batch takes longer, and no more come meanwhile than it answers."""
LAST, IN_TIME = 10, 8
"""How many batches are remembered, and after how many of them nearly all have to have come in time:
one client that leaves, or a machine that is held up, changes nothing."""
MOST = 2.0
"""How long is waited at most, to what a batch costs whatever is in it. Those whom a batch was begun
without wait for all of it, so who is a little late is worth more than the time that it takes."""


@dataclass(slots=True)
class Returning:
    """Counts who comes again after a batch was answered, and says how long to wait for them."""

    batch_s: float
    """What a batch costs whatever is in it, in seconds. With 0 nobody is waited for."""
    in_time: deque[bool] = field(default_factory=lambda: deque(maxlen=LAST))
    """Of the last batches, after which of them nearly all came again while that paid."""
    _told: float = 0.0
    _answered: int = 0
    _back: int = 0
    _is_in_time: bool = False

    def told(self, inputs: int, now: float) -> None:
        """So many inputs are being answered."""
        if self._answered:
            self.in_time.append(self._is_in_time)
        self._told, self._answered, self._back, self._is_in_time = now, inputs, 0, False

    def came(self, inputs: int, now: float) -> bool:
        """So many inputs are asked about. Whether as many are back as were answered."""
        self._back += inputs
        if self._back >= LEAST_SHARE * self._answered:
            self._is_in_time |= now - self._told <= self.batch_s
        return self._back >= self._answered

    @property
    def pays(self) -> bool:
        """Whether to wait for those who were answered last, if one batch takes all."""
        return self.batch_s > 0.0 and sum(self.in_time) >= IN_TIME

    def left_s(self, now: float) -> float:
        """How long to wait yet, in seconds; 0 once as many are back as were answered."""
        if self._back >= self._answered:
            return 0.0
        return max(0.0, self._told + MOST * self.batch_s - now)
