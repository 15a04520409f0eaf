"""Passes requests that a frontend does not answer itself on to its replica."""

from collections.abc import AsyncIterator

import httpx

from serve.http.asgi import Message, Receive, Scope, Send
from serve.http.errors import HttpError
from serve.http.guard import error_response, send_response

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Hop-by-hop headers, which a proxy must not forward. Source: RFC 9110, section 7.6.1."""


class ReverseProxy:
    """Forwards requests to the replica, and its responses to the clients."""

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        # without trust_env, because a proxy that the environment names cannot reach the replica
        self._client = httpx.AsyncClient(timeout=None, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards one request; answers 503 if the replica does not respond."""
        try:
            response = await self._client.send(self._request(scope, receive), stream=True)
        except (UnicodeDecodeError, httpx.InvalidURL, httpx.LocalProtocolError):
            refusal = HttpError(400, "invalid_request", "the request is not valid HTTP")
            await send_response(send, error_response(refusal, ""), "")
            return
        except httpx.HTTPError:
            message = "the replica of this frontend worker does not respond; try again"
            refusal = HttpError(503, "not_ready", message, retry_after_s=1)
            await send_response(send, error_response(refusal, ""), "")
            return
        try:
            kept = [(k.lower(), v) for k, v in response.headers.raw if k.lower() not in HOP_BY_HOP]
            start = {"type": "http.response.start", "status": response.status_code}
            await send({**start, "headers": kept})
            async for piece in response.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    def _request(self, scope: Scope, receive: Receive) -> httpx.Request:
        """Builds the forwarded request, always to the replica's host, even if the path has one."""
        target = scope["raw_path"] + (b"?" if scope["query_string"] else b"")
        names = {name for name, _ in scope["headers"]}
        has_body = not names.isdisjoint((b"content-length", b"transfer-encoding"))
        return self._client.build_request(
            scope["method"],
            self._url.copy_with(raw_path=target + scope["query_string"]),
            headers=[pair for pair in scope["headers"] if pair[0] not in HOP_BY_HOP],
            content=_body(receive) if has_body else None,
        )


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    message: Message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        yield message.get("body", b"")
