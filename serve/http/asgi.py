"""The messages of ASGI: their types, request bodies within limits, and clients that disconnect."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from serve.http.errors import HttpError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Result = TypeVar("Result")

BODY_TIMEOUT_S = 10.0
"""Longest time in which a client sends its request body."""
MAX_BODY_BYTES = 2**20
"""Largest request body."""
DISCONNECT_CHECK_S = 0.1
"""Time after which an unanswered request is watched for its client's disconnect."""


class _Cancellation:
    """Cancels the task that created it when it is called.

    `was_called` distinguishes this cancellation from one by another caller.
    """

    def __init__(self) -> None:
        self._task, self.was_called = asyncio.current_task(), False

    def __call__(self) -> None:
        self.was_called = True
        if self._task:
            self._task.cancel()


async def read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """Reads the complete body.

    Raises:
        HttpError: 413 for a body over MAX_BODY_BYTES, 408 for one that takes over BODY_TIMEOUT_S.
        ConnectionError: if the client disconnects.
    """
    check_length(headers)
    cancellation = _Cancellation()  # asyncio.timeout takes five times as long
    timer = asyncio.get_running_loop().call_later(BODY_TIMEOUT_S, cancellation)
    try:
        return await _join_body(receive)
    except asyncio.CancelledError:
        if cancellation.was_called:
            raise body_timeout_error() from None
        raise
    finally:
        timer.cancel()


async def _join_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise body_size_error()
        if not message.get("more_body"):
            return b"".join(parts)


def check_length(headers: Mapping[bytes, bytes]) -> None:
    """Raises HttpError 413 if `Content-Length` is over MAX_BODY_BYTES or is not a number."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise body_size_error()


def body_timeout_error() -> HttpError:
    """Returns the error 408 of a body that does not arrive in time."""
    return HttpError(408, "too_slow", f"the body took over {BODY_TIMEOUT_S:.0f} s")


def body_size_error() -> HttpError:
    """Returns the error 413 of a body that is too large."""
    return HttpError(413, "too_large", f"the body has more than {MAX_BODY_BYTES:,} bytes")


async def cancel_on_disconnect(work: Awaitable[Result], receive: Receive) -> Result:
    """Awaits the work on a request, and cancels it if the client disconnects.

    The watcher starts after DISCONNECT_CHECK_S, because most requests are answered before and then
    need no task of their own.

    Raises:
        ConnectionError: if the client disconnects.
    """
    cancellation, watchers = _Cancellation(), list[asyncio.Task[None]]()

    async def watch() -> None:
        await receive()  # after the body, ASGI has only the disconnect to report
        cancellation()

    loop = asyncio.get_running_loop()
    timer = loop.call_later(DISCONNECT_CHECK_S, lambda: watchers.append(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if cancellation.was_called:
            raise ConnectionError from None
        raise
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that yields a body that was read already, then the next messages."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
