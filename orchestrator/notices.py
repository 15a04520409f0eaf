"""What a run tells whoever watches it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage begins."""

    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage moved on."""

    stage: str
    done: int
    total: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class StageFinished:
    """A stage ended with a result."""

    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the user should know."""

    text: str


Notice = StageStarted | Progress | StageFinished | Remark
Notify = Callable[[Notice], None]
