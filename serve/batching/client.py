"""The interface through which a handler gets scores of texts from an engine."""

import abc
import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from serve.batching.rows import Text


class QueueFullError(Exception):
    """The queue is full; `retry_after_s` is the expected time until it is empty."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class DeadlineError(Exception):
    """The request was not answered within its timeout."""


class NonFiniteScoresError(Exception):
    """The model's scores contain NaN or infinity."""


class InternalError(Exception):
    """The engine or the tokenizer failed; the log of its process has the cause."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The scores of a request's texts, with the times of their last batch."""

    scores: list[list[float]]
    """One list for each text, with one score for each label."""
    is_cut: bool
    """True if a text was longer than the model's limit and was cut."""
    batch_rows: int
    """Rows of the last batch with a text of the request."""
    queue_s: float
    """Time from the request's arrival to the start of its last batch."""
    infer_s: float
    """Duration of the last batch."""


Callback = Callable[[Answer | Exception], None]
"""Called with a request's answer, or with the error that takes its place."""


@dataclass(frozen=True, slots=True)
class Load:
    """The queued requests, and the rate at which they are answered."""

    requests: int
    tokens: float
    """Tokens of the queued requests, estimated from their characters."""
    tokens_per_s: float | None
    """Moving average over the last batches; None before the first batch."""

    @property
    def backlog_s(self) -> float:
        """Expected seconds until all queued requests are answered; 0 before the first batch."""
        return self.tokens / self.tokens_per_s if self.tokens_per_s else 0.0


class InferenceClient(abc.ABC):
    """Gets scores of texts from an engine, in this process or in the replica's."""

    @property
    @abc.abstractmethod
    def load(self) -> Load:
        """The requests that wait now."""

    @abc.abstractmethod
    def start(self, inputs: Sequence[Text], timeout_s: float, on_answered: Callback) -> Any:
        """Queues texts and returns a ticket, which the caller must pass to `cancel` at the end.

        Args:
            inputs: Texts, or pairs of texts.
            timeout_s: Time after which `on_answered` receives DeadlineError.
            on_answered: Called on this event loop with the answer or an error, once or more often;
                only the first call counts.

        Raises:
            QueueFullError: if the queued tokens exceed the limit.
        """

    @abc.abstractmethod
    def cancel(self, ticket: Any) -> None:
        """Ends a request: its texts that were not scored yet leave the queue."""


Result = TypeVar("Result")


def settle(future: "asyncio.Future[Result]", result: Result | Exception) -> None:
    """Sets a future's result or exception, unless it has one."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


async def answered(
    start: Callable[[Callable[[Any], None]], Any], cancel: Callable[[Any], None]
) -> Any:
    """Starts a request and returns its result, or raises the error that takes its place.

    If the calling task is cancelled, the request is cancelled too.

    Args:
        start: Starts the request with a callback for its result, and returns a ticket.
        cancel: Ends the request of a ticket.
    """
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ticket = start(functools.partial(settle, future))
    try:
        return await future
    finally:
        cancel(ticket)
