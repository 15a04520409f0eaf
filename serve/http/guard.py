"""Checks requests that `serve.http.fast_path` does not answer: tokens, sizes, times.

An ASGI middleware. Predictions are answered here, ahead of any framework; everything else goes on
to the application behind it, with its body read and bounded.
"""

import asyncio
import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeGuard

from serve.http.errors import ErrorBody, ErrorDetail, HttpError
from serve.http.handler import Handler, HttpResponse, PredictHandler, error_of
from serve.http.paths import relative

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_TIMEOUT_S = 10.0
"""How long a client may take to send its body."""
MAX_BODY_BYTES = 2**20
"""Largest body."""
LOOK_S = 0.1
"""How long an answer may take before the handler looks whether its client is still there."""
MAX_HEADERS, MAX_HEADER_BYTES = 64, 16_384
OPEN_PATHS = frozenset(
    {"", "/", "/health", "/v2/health/live", "/v2/health/ready", "/openapi.json", "/docs"}
)
"""What needs no token: whether it lives, and how to use it."""
INFER = "/infer"
KNOWN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PROCESS, NUMBERS = secrets.token_hex(4), itertools.count()
"""Requests without an id get one of these, at the price of no system call."""
RETRY_AFTER = "retry-after"


class RequestGuard:
    """Guards one handler; `find` returns it once it is ready."""

    def __init__(self, app: Application, find: Callable[[], Handler | None]) -> None:
        self._app, self._find = app, find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        handler = self._find()
        if scope["type"] != "http" or handler is None:
            await self._app(scope, receive, send)
            return
        path = relative(scope["path"], handler.config.route)
        headers = dict[bytes, bytes](scope["headers"])
        tracing = handler.tracing
        if tracing is None:
            await self._pass(handler, path, headers, scope, receive, send)
            return
        carried = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers.items()}
        with tracing.request(scope["method"], path, carried) as span:

            async def noting(message: Message) -> None:
                tracing.noted(span, message)
                await send(message)

            await self._pass(handler, path, headers, scope, receive, noting)

    async def _pass(
        self,
        handler: Handler,
        path: str,
        headers: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        identity = identity_of(headers)
        try:
            check(scope, path, headers, handler)
            if is_prediction(handler, path, scope):
                body = await read_body(headers, receive)
                response = await unless_gone(handler.predict(body, timeout_of(headers)), receive)
            else:
                scope["state"] = {**scope.get("state", {}), "request_id": identity}
                replay = receive
                if scope["method"] in ("POST", "PUT", "PATCH"):
                    replay = replaying(await read_body(headers, receive), receive)
                await self._app(scope, replay, send)
                return
        except ConnectionError:
            return  # nobody is there to be answered
        except Exception as error:  # noqa: BLE001 - the last line: no trace reaches a client
            response = refused(error_of(error), identity)
        handler.metrics.count(path if path == handler.path else "other", response.status)
        await send_response(send, response, identity)


def is_prediction(handler: Handler, path: str, scope: Scope) -> TypeGuard[PredictHandler[Any]]:
    """Whether a request is one for predictions that its handler answers as a whole."""
    is_asked = path == handler.path and scope["method"] == "POST"
    return is_asked and isinstance(handler, PredictHandler)


def identity_of(headers: Mapping[bytes, bytes]) -> str:
    """The id that a request brought along, or a new one."""
    given = headers.get(b"x-request-id", b"")
    is_known = given and KNOWN_ID.fullmatch(given)
    return given.decode() if is_known else f"{PROCESS}{next(NUMBERS):08x}"


def check(scope: Scope, path: str, headers: dict[bytes, bytes], handler: Handler) -> None:
    """Everything that can be refused before the body; the cheapest first."""
    size = sum(map(len, itertools.chain.from_iterable(scope["headers"])))
    if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise HttpError(431, "headers_too_large", "the headers are too many or too long")
    if path == handler.path and scope["method"] not in ("POST", "OPTIONS"):
        message = "predictions are requested by POST"
        raise HttpError(405, "method_not_allowed", message, headers={"allow": "POST"})
    if path not in OPEN_PATHS:
        caller = handler.access.name_of(headers.get(b"authorization", b"").decode("latin-1"))
        if caller is None:
            message = "send an accepted token as Authorization: Bearer …"
            raise HttpError(401, "unauthorized", message)
        if caller:
            handler.metrics.count_caller(caller)
    if scope["method"] == "POST" and (path == handler.path or path.endswith(INFER)):
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise HttpError(415, "unsupported_media_type", "send Content-Type: application/json")


class _Stop:
    """Cancels the task that made it, which can tell by `has_come` who did."""

    def __init__(self) -> None:
        self._task, self.has_come = asyncio.current_task(), False

    def __call__(self) -> None:
        self.has_come = True
        if self._task:
            self._task.cancel()


async def read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """The whole body, counted while it is read; HttpError when it is too large or too slow."""
    check_length(headers)
    stop = _Stop()  # asyncio.timeout takes five times as long
    timer = asyncio.get_running_loop().call_later(BODY_TIMEOUT_S, stop)
    try:
        return await _collected(receive)
    except asyncio.CancelledError:
        if stop.has_come:
            raise too_slow() from None
        raise
    finally:
        timer.cancel()


async def _collected(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise too_large()
        if not message.get("more_body"):
            return b"".join(parts)


def check_length(headers: Mapping[bytes, bytes]) -> None:
    """HttpError for a body that is said to be too large."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise too_large()


def too_slow() -> HttpError:
    """The body does not come."""
    return HttpError(408, "too_slow", f"the body took over {BODY_TIMEOUT_S:.0f} s")


def too_large() -> HttpError:
    """The body is too large."""
    return HttpError(413, "too_large", f"the body has more than {MAX_BODY_BYTES:,} bytes")


def timeout_of(headers: Mapping[bytes, bytes]) -> float:
    """How long the client wants to wait, in seconds; infinite where it does not say."""
    text = headers.get(b"x-request-timeout-seconds", b"")
    try:
        wanted = float(text) if text else float("inf")
    except ValueError:
        wanted = float("nan")
    if not wanted > 0:
        message = "x-request-timeout-seconds must be a number above 0"
        raise HttpError(400, "invalid_header", message)
    return wanted


async def unless_gone(work: Awaitable[HttpResponse], receive: Receive) -> HttpResponse:
    """An answer, unless the client leaves before: its texts then leave the queue.

    Most answers come before anybody looks, which saves a task for each.
    """
    stop, watchers = _Stop(), list[asyncio.Task[None]]()

    async def watch() -> None:
        await receive()  # after the body, only the end of the connection can come
        stop()

    loop = asyncio.get_running_loop()
    timer = loop.call_later(LOOK_S, lambda: watchers.append(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if stop.has_come:
            raise ConnectionError from None
        raise
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


def replaying(body: bytes, receive: Receive) -> Receive:
    """A body that was read, to be read again; then whatever comes."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def refused(refusal: HttpError, identity: str) -> HttpResponse:
    """An error in the one shape."""
    detail = ErrorDetail(code=refusal.code, message=refusal.message, request_id=identity)
    headers = {"content-type": "application/json", **refusal.headers}
    if refusal.retry_after_s is not None:
        headers[RETRY_AFTER] = str(int(refusal.retry_after_s + 0.999))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return HttpResponse(refusal.status, ErrorBody(error=detail).model_dump_json().encode(), headers)


async def send_response(send: Send, response: HttpResponse, identity: str) -> None:
    """Send a whole response."""
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    encoded += (
        (b"content-length", b"%d" % len(response.body)),
        (b"x-request-id", identity.encode()),
    )
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body})
