"""How long an engine waits for those whom it just answered, or for the rest of a burst.

Clients that ask again once they are answered fall into groups by turns: while one group is run the
other waits. Where one batch of all is cheaper than one of each group, as the weights of a large
model are read for each and graphs are made for full batches, it pays to wait for them.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

LEAST_SHARE = 0.9
"""Of the inputs that were answered, how many are nearly all. Waiting pays if they come again within
what one batch of all saves. Where clients do not wait for answers that is rare, as every batch
takes longer, and no more come meanwhile than it answers."""
LAST, IN_TIME, IN_VAIN = 10, 9, 5
"""How many batches are remembered. After how many of them nearly all have to have come in time
until they are waited for, and after how many of them later than anybody waits until they no longer
are: where clients take about as long as what is saved, groups that merge and fall apart are worse
than either."""
MOST = 2.0
"""How long is waited at most, to what is saved. Those whom a batch was begun without wait for all
of it, so who is a little late is worth more than the time that it takes."""
PAUSE_S = 0.5
"""Where nobody came for so long, more than anybody is waited for, clients have paused or left: that
says nothing of how soon they come again while they ask."""
APART_S = 5e-3
"""How far apart groups come of clients that begin at once: those over connections that the proxy
had open, then those over new ones. See benchmarks/HISTORY.md."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What one batch costs less than two of half as many tokens, timed as a model is loaded."""

    tokens: tuple[float, ...]
    """Of the batches that were timed, ascending."""
    seconds: tuple[float, ...]

    def of(self, tokens: float) -> float:
        """Of a batch of so many, in seconds."""
        return float(np.interp(tokens, self.tokens, self.seconds))


NOTHING = Saving((0.0,), (0.0,))
"""Where nobody is waited for."""


@dataclass(slots=True)
class Returning:
    """Counts who comes again after a batch was answered, and says how long to wait for them."""

    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))
    """After each of the last batches that anybody followed, how long it was until nearly all had
    come again."""
    answered: Sequence[int] = ()
    """Tokens of each input of the last batch."""
    _told: float = 0.0
    _back: int = 0
    _took_s: float = math.inf
    _pays: bool = False

    def told(self, lengths: Sequence[int], now: float) -> None:
        """Inputs of so many tokens are being answered."""
        if self._back:
            self.took_s.append(self._took_s)
        self.answered, self._told, self._back, self._took_s = lengths, now, 0, math.inf

    def came(self, inputs: int, now: float) -> bool:
        """So many inputs are asked about. Whether as many are back as were answered."""
        if not self._back and self._has_paused(now):
            self.answered = ()
        if not self.answered:
            return False
        self._back += inputs
        if self._back >= LEAST_SHARE * len(self.answered):
            self._took_s = min(self._took_s, now - self._told)
        return self.are_back

    @property
    def are_back(self) -> bool:
        """Whether as many inputs came as were answered last, and not after a pause."""
        return 0 < len(self.answered) <= self._back

    def pays(self, saved_s: float) -> bool:
        """Whether to wait for those who were answered last, where one batch of all saves that.

        Once it pays it does until half were waited for in vain.
        """
        if self._pays:
            in_vain = sum(took_s > MOST * saved_s for took_s in self.took_s)
            self._pays = in_vain < IN_VAIN
        else:
            self._pays = sum(took_s <= saved_s for took_s in self.took_s) >= IN_TIME
        return saved_s > 0.0 and self._pays

    def left_s(self, now: float, saved_s: float) -> float:
        """How long to wait yet, in seconds; 0 once as many are back as were answered."""
        return 0.0 if self.are_back else max(0.0, self._told + MOST * saved_s - now)

    def burst_left_s(
        self, came: Sequence[float], now: float, saving: Saving, tokens: float
    ) -> float:
        """How long a burst of so many tokens may go on yet, in seconds; `came` is of each request.

        A lone one is no burst. One is over when nothing comes for as long as a batch costs whatever
        is in it. After a pause it is followed for longer, as those who begin at once come in
        groups. Clients that do not wait for answers hardly ever come together after a pause.
        """
        if len(came) < 2:
            return 0.0
        quiet_s, most_s = saving.of(0), MOST * saving.of(tokens)
        if self._has_paused(min(came)):
            quiet_s, most_s = max(quiet_s, APART_S), MOST * saving.of(math.inf)
        return max(0.0, min(max(came) + quiet_s, min(came) + most_s) - now)

    def _has_paused(self, came: float) -> bool:
        """Whether the first who came since the last batch was answered came after a pause."""
        return came - self._told > PAUSE_S
