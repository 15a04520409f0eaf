"""A uvicorn connection that answers predictions without ASGI.

ASGI adds a task, an event, several coroutines and timers to each request: half of the time that a
prediction takes besides its model. Requests for other paths, and predictions that `is_eligible`
excludes, go to the ASGI application, whose `RequestGuard` gives the same answers.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serve.http import asgi, guard
from serve.http.errors import HttpError
from serve.http.handler import Handler, HttpResponse, PredictHandler, error_of

HandlerLookup = Callable[[], Handler | None]
"""Returns the handler of this process; None until it is ready."""


class FastRequest:
    """A request for predictions that its connection answers.

    It has the attributes that uvicorn's connection uses of its request cycle, and the method `set`
    that the connection calls on the cycle's event.
    """

    def __init__(self, connection: HttpToolsProtocol, handler: PredictHandler[Any]) -> None:
        self._connection, self._handler = connection, handler
        self._headers = dict(connection.headers)
        self._request_id = guard.request_id_of(self._headers)
        self._ticket: Any = None
        self._body_timer: asyncio.TimerHandle | None = None
        self.body, self.more_body = bytearray(), True
        self.disconnected = self.response_complete = False
        self.keep_alive = connection.parser.should_keep_alive()
        scope = cast("asgi.Scope", connection.scope)
        try:
            guard.check(scope, handler.path, self._headers, handler)
            asgi.check_length(self._headers)
        except HttpError as refusal:
            self._refuse(refusal)

    @property
    def message_event(self) -> "FastRequest":
        """The object whose `set` uvicorn's connection calls when data or a disconnect arrives."""
        return self

    def start_body_timer(self) -> None:
        """Answers 408 if the body has not arrived completely within BODY_TIMEOUT_S."""
        if self.more_body and not self.response_complete and self._body_timer is None:
            loop = self._connection.loop
            self._body_timer = loop.call_later(
                asgi.BODY_TIMEOUT_S, self._refuse, asgi.body_timeout_error()
            )

    def set(self) -> None:
        """Handles the arrival of a part of the body or of its end, or the client's disconnect."""
        if self.response_complete:
            return
        if self.disconnected:
            self._end()
        elif len(self.body) > asgi.MAX_BODY_BYTES:
            self._refuse(asgi.body_size_error())
        elif self.more_body:
            self._connection.flow.resume_reading()
        else:
            self._submit()

    def _submit(self) -> None:
        handler = self._handler
        if self._body_timer:
            self._body_timer.cancel()
        try:
            timeout_s = guard.timeout_of(self._headers)
            self._ticket = handler.submit(bytes(self.body), timeout_s, self._on_response)
        except Exception as error:  # noqa: BLE001 - no traceback reaches a client
            self._refuse(error_of(error))

    def _on_response(self, response: HttpResponse | HttpError) -> None:
        if self.response_complete or self.disconnected:
            return
        if isinstance(response, HttpError):
            self._refuse(response)
        else:
            self._send(response)

    def _refuse(self, refusal: HttpError) -> None:
        self._send(guard.error_response(refusal, self._request_id))

    def _send(self, response: HttpResponse) -> None:
        self._end()
        self.response_complete = True
        self._handler.metrics.count(self._handler.path, response.status)
        connection = self._connection
        parts = [STATUS_LINE[response.status]]
        for name, value in connection.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        lines = [f"{name}: {value}\r\n" for name, value in response.headers.items()]
        size = len(response.body)
        lines.append(f"content-length: {size}\r\nx-request-id: {self._request_id}\r\n")
        if not self.keep_alive:
            lines.append("connection: close\r\n")
        lines.append("\r\n")
        parts += ("".join(lines).encode("latin-1"), response.body)
        connection.transport.write(b"".join(parts))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def _end(self) -> None:
        """Stops the body timer and takes the request out of the queue."""
        if self._body_timer:
            self._body_timer.cancel()
        if self._ticket is not None:
            self._handler.cancel(self._ticket)
            self._ticket = None


def connections(find_handler: HandlerLookup) -> type[HttpToolsProtocol]:
    """Returns the connection class for uvicorn's option `http`."""

    class Connection(HttpToolsProtocol):
        """Answers requests for predictions; passes every other request to ASGI."""

        prediction: FastRequest | None = None
        """The last request, if it was for predictions."""

        def on_headers_complete(self) -> None:
            """Starts a FastRequest for predictions, or uvicorn's own request cycle."""
            handler = find_handler()
            if isinstance(handler, PredictHandler) and is_eligible(self, handler):
                self.scope["method"] = "POST"
                self.prediction = FastRequest(self, handler)
                self.cycle = self.prediction  # type: ignore[assignment]
            else:
                self.prediction = None
                super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            """Parses the received bytes; an incomplete body starts the body timer."""
            super().data_received(data)
            if self.prediction:
                self.prediction.start_body_timer()

    return Connection


def is_eligible(connection: HttpToolsProtocol, handler: PredictHandler[Any]) -> bool:
    """Returns True for a POST for predictions that needs nothing of ASGI.

    Excluded are HTTP/1.0, upgrades, `Expect: 100-continue`, traced requests, and a request whose
    predecessor on the same connection is not answered yet.
    """
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
