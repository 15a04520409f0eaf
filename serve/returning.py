"""How long an idle engine waits for those whom it just answered, so that two batches become one.

Clients that ask again once they are answered fall into groups by turns: while one group is run the
other waits. Where running a batch costs much whatever is in it, as the weights of a large model are
read for each, one batch of all is cheaper than one of each group.
"""

from dataclasses import dataclass

WINDOW = 0.8
"""How long is waited at most, to what a batch costs whatever is in it: less than is saved."""
LEAST_SHARE = 0.9
"""Of the inputs that were answered, how many come again in that time where waiting for them pays.
Of clients that do not wait for answers `WINDOW` come at most, as no batch takes less than it costs
whatever is in it."""
SMOOTHING = 0.2
"""Weight of the newest batch in that share."""


@dataclass(slots=True)
class Returning:
    """Counts who comes again after a batch was answered, and says how long to wait for them."""

    batch_s: float
    """What a batch costs whatever is in it, in seconds. With 0 nobody is waited for."""
    share: float = 0.0
    """Of the inputs that were answered, on average, how many came again within the window."""
    _told: float = 0.0
    _answered: int = 0
    _back: int = 0

    def told(self, inputs: int, now: float) -> None:
        """So many inputs are being answered."""
        if self._answered:
            newest = min(1.0, self._back / self._answered)
            self.share += SMOOTHING * (newest - self.share)
        self._told, self._answered, self._back = now, inputs, 0

    def came(self, inputs: int, at: float) -> None:
        """So many inputs were asked about at that time."""
        if 0.0 <= at - self._told <= WINDOW * self.batch_s:
            self._back += inputs

    @property
    def pays(self) -> bool:
        """Whether to wait for those who were answered last, if one batch takes all."""
        return self.batch_s > 0.0 and self.share >= LEAST_SHARE

    def left_s(self, now: float) -> float:
        """How long to wait yet, in seconds; 0 once as many are back as were answered."""
        if self._back >= self._answered:
            return 0.0
        return max(0.0, self._told + WINDOW * self.batch_s - now)
