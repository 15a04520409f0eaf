"""Getting scores of texts, from an engine in this process or another: what is asked and told."""

import abc
import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from serve.batching.rows import Text


class QueueFullError(Exception):
    """More waits than may; `retry_after_s` is the backlog."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class DeadlineError(Exception):
    """The answer would come too late, so the engine was not asked."""


class NonFiniteScoresError(Exception):
    """The model's scores are not numbers."""


class InternalError(Exception):
    """Something failed that must not, and is in the log of the process where it did."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores of a request's texts, and how they came about."""

    scores: list[list[float]]
    """Of each text, one for each label."""
    is_cut: bool
    """Whether some text was longer than the model takes."""
    batch_rows: int
    """Rows of the last batch that it was part of."""
    queue_s: float
    """From asking to the start of the last batch."""
    infer_s: float
    """Of that batch."""


Callback = Callable[[Answer | Exception], None]


@dataclass(frozen=True, slots=True)
class Load:
    """What waits now, and how fast it goes."""

    requests: int
    tokens: float
    tokens_per_s: float | None
    """None before the first batch."""

    @property
    def backlog_s(self) -> float:
        """Seconds until all that waits is answered; 0 before anything is known."""
        return self.tokens / self.tokens_per_s if self.tokens_per_s else 0.0


class InferenceClient(abc.ABC):
    """Gets scores from an engine, in this process or another."""

    @property
    @abc.abstractmethod
    def load(self) -> Load:
        """What waits now."""

    @abc.abstractmethod
    def start(self, inputs: Sequence[Text], timeout_s: float, reply: Callback) -> Any:
        """Ask for scores of some texts; `reply` is called on this event loop, once or more often.

        It is given the answer, DeadlineError after `timeout_s`, or why there is none. Raises
        QueueFullError. What is returned is to be given to `leave`.
        """

    @abc.abstractmethod
    def leave(self, asked: Any) -> None:
        """Nobody waits for what was started any more."""

    async def ask(self, inputs: Sequence[Text], timeout_s: float) -> Answer:
        """Scores of some texts.

        Raises QueueFullError, DeadlineError after `timeout_s`, NonFiniteScoresError or
        InternalError. When the caller is cancelled, its texts leave the queue.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        asked = self.start(inputs, timeout_s, functools.partial(settle, future))
        try:
            return await future
        finally:
            self.leave(asked)


Found = TypeVar("Found")


def settle(future: "asyncio.Future[Found]", found: Found | Exception) -> None:
    """Hand over what was found, unless that was done before."""
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
