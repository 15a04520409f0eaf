"""The notices that a run sends to its console."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage, or the next part of it, has started."""

    stage: str
    text: str = ""
    """What is done and waited for now."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage has completed `done` of `total` units."""

    stage: str
    done: int
    total: int
    text: str = ""
    is_result: bool = False
    """Whether the text is a result that stays on the screen, such as that of a probe."""


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A stage has a result."""

    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Waiting(Remark):
    """A sentence that says what a run waits for."""


class Pace:
    """Thins out what comes often: at most one in an interval, by key, and always the last."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._passed_s: dict[str, float] = {}

    def is_due(self, key: str = "", *, is_last: bool) -> bool:
        """Returns whether to pass it on now; then the key's next interval begins."""
        now = self._clock()
        is_due = is_last or now - self._passed_s.get(key, -math.inf) >= self._interval_s
        if is_due:
            self._passed_s[key] = now
        return is_due


Notice = StageStarted | Progress | StageFinished | Remark
Notify = Callable[[Notice], None]
