"""The notices that a run sends to its console."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage has started."""

    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage has completed `done` of `total` units."""

    stage: str
    done: int
    total: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A stage has a result."""

    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence for the user."""

    text: str


Notice = StageStarted | Progress | StageFinished | Remark
Notify = Callable[[Notice], None]
