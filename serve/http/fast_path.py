"""The hot path: a connection of uvicorn's that answers predictions itself, ahead of ASGI.

A request that goes through ASGI costs a task, an event, several coroutines and timers: half of what
a prediction costs beside its model. Whatever else comes, or is not plain, goes on to the
application, whose `RequestGuard` answers predictions the same way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serve.http import guard
from serve.http.errors import HttpError
from serve.http.handler import Handler, HttpResponse, PredictHandler, error_of

Find = Callable[[], Handler | None]


class FastRequest:
    """One request. To its connection it is a cycle of uvicorn's, and the event of one."""

    def __init__(self, connection: HttpToolsProtocol, handler: PredictHandler[Any]) -> None:
        self._connection, self._handler = connection, handler
        self._headers = dict(connection.headers)
        self._identity = guard.identity_of(self._headers)
        self._ticket: Any = None
        self._slow: asyncio.TimerHandle | None = None
        self.body, self.more_body = bytearray(), True
        self.disconnected = self.response_complete = False
        self.keep_alive = connection.parser.should_keep_alive()
        scope = cast("guard.Scope", connection.scope)
        try:
            guard.check(scope, handler.path, self._headers, handler)
            guard.check_length(self._headers)
        except HttpError as refusal:
            self._refuse(refusal)

    @property
    def message_event(self) -> "FastRequest":
        """What is told that something came, by `set`."""
        return self

    def wait(self) -> None:
        """The body did not come whole, unless it did: it has a while."""
        if self.more_body and not self.response_complete and self._slow is None:
            loop = self._connection.loop
            self._slow = loop.call_later(guard.BODY_TIMEOUT_S, self._refuse, guard.too_slow())

    def set(self) -> None:
        """More of the body came, its end, or the client left."""
        if self.response_complete:
            return
        if self.disconnected:
            self._end()
        elif len(self.body) > guard.MAX_BODY_BYTES:
            self._refuse(guard.too_large())
        elif self.more_body:
            self._connection.flow.resume_reading()
        else:
            self._submit()

    def _submit(self) -> None:
        handler = self._handler
        try:
            timeout_s = min(guard.timeout_of(self._headers), handler.config.timeout_s)
            self._ticket = handler.submit(bytes(self.body), timeout_s, self._on_response)
        except Exception as error:  # noqa: BLE001 - the last line: no trace reaches a client
            self._refuse(error_of(error))

    def _on_response(self, found: HttpResponse | HttpError) -> None:
        if self.response_complete or self.disconnected:
            return
        if isinstance(found, HttpError):
            self._refuse(found)
        else:
            self._send(found)

    def _refuse(self, refusal: HttpError) -> None:
        self._send(guard.refused(refusal, self._identity))

    def _send(self, response: HttpResponse) -> None:
        self._end()
        self.response_complete = True
        self._handler.metrics.count(self._handler.path, response.status)
        connection = self._connection
        parts = [STATUS_LINE[response.status]]
        for name, value in connection.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        lines = [f"{name}: {value}\r\n" for name, value in response.headers.items()]
        lines.append(f"content-length: {len(response.body)}\r\nx-request-id: {self._identity}\r\n")
        if not self.keep_alive:
            lines.append("connection: close\r\n")
        lines.append("\r\n")
        parts += ("".join(lines).encode("latin-1"), response.body)
        connection.transport.write(b"".join(parts))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def _end(self) -> None:
        """Nobody waits any more."""
        if self._slow:
            self._slow.cancel()
        if self._ticket is not None:
            self._handler.cancel(self._ticket)
            self._ticket = None


def connections(find: Find) -> type[HttpToolsProtocol]:
    """The class of connections for uvicorn's option `http`; `find` returns the handler if ready."""

    class Connection(HttpToolsProtocol):
        """Looks at the head of a request, and answers those for predictions."""

        prediction: FastRequest | None = None
        """The last request, if it was for one."""

        def on_headers_complete(self) -> None:
            """Begin a prediction, or what else it is."""
            handler = find()
            if isinstance(handler, PredictHandler) and is_plain(self, handler):
                self.scope["method"] = "POST"
                self.prediction = FastRequest(self, handler)
                self.cycle = self.prediction  # type: ignore[assignment]
            else:
                self.prediction = None
                super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            """Take what came; a body that did not come whole has a while."""
            super().data_received(data)
            if self.prediction:
                self.prediction.wait()

    return Connection


def is_plain(connection: HttpToolsProtocol, handler: PredictHandler[Any]) -> bool:
    """Whether a request is for predictions, and nothing about it is unusual."""
    before = connection.cycle
    return (
        connection.url.decode("latin-1") == handler.config.route + handler.path
        and connection.parser.get_method() == b"POST"
        and connection.parser.get_http_version() == "1.1"
        and not connection.parser.should_upgrade()
        and not connection.expect_100_continue
        and not connection.root_path
        and not connection.flow.write_paused
        and (before is None or before.response_complete)
        and handler.tracing is None
    )
