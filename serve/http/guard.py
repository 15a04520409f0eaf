"""ASGI middleware that checks a request's token, size and time before the application.

It receives the requests that `serve.http.fast_path` does not answer. It answers predictions itself,
which is faster than FastAPI, and passes other requests on with their body read and limited.
"""

import itertools
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from serve.http.asgi import (
    Application,
    Message,
    Receive,
    Scope,
    Send,
    cancel_on_disconnect,
    read_body,
    replay_body,
)
from serve.http.errors import ErrorBody, HttpError
from serve.http.handler import Handler, HttpResponse, PredictHandler, error_of
from serve.http.paths import relative

MAX_HEADERS, MAX_HEADER_BYTES = 64, 16_384
OPEN_PATHS = frozenset(
    {"", "/", "/health", "/v2/health/live", "/v2/health/ready", "/openapi.json", "/docs"}
)
"""Paths that need no token: health and documentation."""
INFER, OTHER = "/infer", "other"
"""Paths of requests in the metrics besides that of predictions: `/v2/models/<name>/infer`, and all
paths that are not for the model."""
VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PROCESS, NUMBERS = secrets.token_hex(4), itertools.count()
"""The two parts of a new request id. A counter is used because it needs no system call."""
REQUEST_ID = "request_id"
"""Field of a request's state with its id, in requests that the guard has checked."""
ID_HEADER, RETRY_AFTER = b"x-request-id", "retry-after"


class RequestGuard:
    """Checks each request, and answers it or passes it to the application."""

    def __init__(self, app: Application, find_handler: Callable[[], Handler | None]) -> None:
        """Args: the application behind, and a function that returns the handler once it is ready.

        Until then every request goes to the application, which answers 503.
        """
        self._app, self._find_handler = app, find_handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, in a span if the replica is traced."""
        handler = self._find_handler()
        is_checked = REQUEST_ID in scope.get("state", {})  # by the guard around Ray Serve
        if scope["type"] != "http" or handler is None or is_checked:
            await self._app(scope, receive, send)
            return
        path = relative(scope["path"], handler.config.route)
        headers = dict[bytes, bytes](scope["headers"])
        tracing = handler.tracing
        if tracing is None:
            await self._handle(handler, path, headers, scope, receive, send)
            return
        decoded = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers.items()}
        with tracing.request(scope["method"], path, decoded) as span:

            async def traced_send(message: Message) -> None:
                tracing.record_status(span, message)
                await send(message)

            await self._handle(handler, path, headers, scope, receive, traced_send)

    async def _handle(
        self,
        handler: Handler,
        path: str,
        headers: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        request_id = request_id_of(headers)
        try:
            check(scope, path, headers, handler)
            if is_prediction(handler, path, scope):
                body = await read_body(headers, receive)
                work = handler.predict(body, timeout_of(headers))
                response = await cancel_on_disconnect(work, receive)
            else:
                replay = receive
                if scope["method"] in ("POST", "PUT", "PATCH"):
                    replay = replay_body(await read_body(headers, receive), receive)
                mark(scope, request_id)
                await self._pass_on(handler, path, scope, replay, send)
                return
        except ConnectionError:
            return  # the client has disconnected
        except Exception as error:  # noqa: BLE001 - no traceback reaches a client
            response = error_response(error_of(error), request_id)
        handler.metrics.count(label_of(path, handler), response.status)
        await send_response(send, response, request_id)

    async def _pass_on(
        self, handler: Handler, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Lets the application answer, and counts its answers to POSTs for the model.

        Raises:
            HttpError: if the application fails before its response has started. A later failure is
                logged only: the server then closes the connection of an incomplete response.
        """
        label, is_started = label_of(path, handler), False
        is_counted = scope["method"] == "POST" and label != OTHER

        async def counted_send(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                if is_counted:
                    handler.metrics.count(label, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted_send)
        except Exception as error:  # noqa: BLE001 - no traceback reaches a client
            refusal = error_of(error)  # logs the error
            if not is_started:
                raise refusal from None


def is_prediction(handler: Handler, path: str, scope: Scope) -> TypeGuard[PredictHandler[Any]]:
    """Returns True for a POST to the prediction path of a `PredictHandler`."""
    is_post = path == handler.path and scope["method"] == "POST"
    return is_post and isinstance(handler, PredictHandler)


def label_of(path: str, handler: Handler) -> str:
    """Returns the path by which the metrics count a request."""
    if path == handler.path or path in handler.other_paths:
        return path
    return INFER if path.endswith(INFER) else OTHER


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Returns the request's `X-Request-Id` if it is valid, or a new id."""
    given = headers.get(ID_HEADER, b"")
    is_valid = given and VALID_ID.fullmatch(given)
    return given.decode() if is_valid else f"{PROCESS}{next(NUMBERS):08x}"


def mark(scope: Scope, request_id: str) -> None:
    """Marks a request as checked, and gives Ray Serve's middleware the same id in its header."""
    scope["state"] = {**scope.get("state", {}), REQUEST_ID: request_id}
    others = [pair for pair in scope["headers"] if pair[0] != ID_HEADER]
    scope["headers"] = [*others, (ID_HEADER, request_id.encode())]


def check(scope: Scope, path: str, headers: dict[bytes, bytes], handler: Handler) -> None:
    """Checks everything that needs no body, the cheapest check first.

    Raises:
        HttpError: 431 for headers, 405 for the method, 401 for the token, 415 for the content type.
    """
    size = sum(map(len, itertools.chain.from_iterable(scope["headers"])))
    if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise HttpError(431, "headers_too_large", "the headers are too many or too long")
    if path == handler.path and scope["method"] not in ("POST", "OPTIONS"):
        message = "predictions are requested by POST"
        raise HttpError(405, "method_not_allowed", message, headers={"allow": "POST"})
    if path not in OPEN_PATHS:
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        authorize(handler, authorization, "send an accepted token as Authorization: Bearer …")
    if scope["method"] == "POST" and label_of(path, handler) != OTHER:
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise HttpError(415, "unsupported_media_type", "send Content-Type: application/json")


def authorize(handler: Handler, authorization: str, advice: str) -> None:
    """Checks the token of a request, and counts the request for the token's owner.

    Args:
        handler: The handler whose tokens are accepted.
        authorization: The request's credentials; empty if it has none.
        advice: Message of the refusal.

    Raises:
        HttpError: 401 if the token is not accepted.
    """
    caller = handler.authenticator.owner_of(authorization)
    if caller is None:
        raise HttpError(401, "unauthorized", advice)
    if caller:
        handler.metrics.count_caller(caller)


def timeout_of(headers: Mapping[bytes, bytes]) -> float:
    """Returns the timeout in `X-Request-Timeout-Seconds`; infinite if there is none.

    Raises:
        HttpError: 400 if the header is not a number above 0.
    """
    text = headers.get(b"x-request-timeout-seconds", b"")
    try:
        wanted = float(text) if text else float("inf")
    except ValueError:
        wanted = float("nan")
    if not wanted > 0:
        message = "x-request-timeout-seconds must be a number above 0"
        raise HttpError(400, "invalid_header", message)
    return wanted


def error_response(refusal: HttpError, request_id: str) -> HttpResponse:
    """Returns the response of an error, with the common JSON body and its headers."""
    detail = refusal.detail(request_id)
    headers = {"content-type": "application/json", **refusal.headers}
    if refusal.retry_after_s is not None:
        headers[RETRY_AFTER] = str(int(refusal.retry_after_s + 0.999))
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return HttpResponse(refusal.status, ErrorBody(error=detail).model_dump_json().encode(), headers)


async def send_response(send: Send, response: HttpResponse, request_id: str) -> None:
    """Sends a complete response over ASGI."""
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    encoded += (
        (b"content-length", b"%d" % len(response.body)),
        (ID_HEADER, request_id.encode()),
    )
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body})
