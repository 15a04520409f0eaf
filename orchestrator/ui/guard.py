"""The ASGI layer around the dashboard: refuses requests, and sets the headers of every answer."""

import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from orchestrator.ui.access import API, Refusal, Tokens, refusal_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        b" object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer: the page loads its own files only, and no other page embeds it."""


class RevokedError(Exception):
    """The token of a request whose answer goes on is no longer accepted."""


class Guard:
    """Lets through the requests that `refusal_of` does not refuse."""

    def __init__(self, application: Application, tokens: Tokens, names: frozenset[str]) -> None:
        self._application, self._tokens, self._names = application, tokens, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        authorization = headers.get("authorization", "")
        owner = self._tokens.owner_of(authorization)
        path: str = scope["path"]
        refusal = refusal_of(scope["method"], path, headers, owner, self._names)
        cache = b"no-store" if path.startswith(API) else b"no-cache"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                further = (*HEADERS, (b"cache-control", cache))
                message["headers"] = [*message.get("headers", ()), *further]
            elif owner and message.get("more_body") and not self._tokens.owner_of(authorization):
                await send({"type": "http.response.body", "body": b""})
                raise RevokedError  # ends a stream, which would go on for hours
            await send(message)

        if refusal:
            await _refuse(refusal, send_with_headers)
            return
        scope["owner"] = owner
        with contextlib.suppress(RevokedError):
            await self._application(scope, receive, send_with_headers)


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"error": refusal.error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
