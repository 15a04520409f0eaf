"""The hot path: a connection of uvicorn's that answers predictions itself, ahead of ASGI.

A request that goes through ASGI costs a task, an event, several coroutines and timers: half of what
a prediction costs beside its model. Whatever else comes, or is not plain, goes on to the
application, whose `Door` answers predictions the same way.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serve import door
from serve.api import MAX_BODY_BYTES, PredictRequest, RefusedError
from serve.asking import Answer
from serve.routing import PREDICT
from serve.server import Answering, Reply, Server, refusal_of

Find = Callable[[], Answering | None]


class Prediction:
    """One request. To its connection it is a cycle of uvicorn's, and the event of one."""

    def __init__(self, connection: HttpToolsProtocol, server: Server) -> None:
        self._connection, self._server = connection, server
        self._headers = dict(connection.headers)
        self._identity = door.identity_of(self._headers)
        self._asked: Any = None
        self._request: PredictRequest | None = None
        self._texts, self._begin = 0, 0.0
        self._slow: asyncio.TimerHandle | None = None
        self.body, self.more_body = bytearray(), True
        self.disconnected = self.response_complete = False
        self.keep_alive = connection.parser.should_keep_alive()
        scope = cast("door.Scope", connection.scope)
        try:
            door.check(scope, PREDICT, self._headers, server)
            door.check_length(self._headers)
        except RefusedError as refusal:
            self._refuse(refusal)

    @property
    def message_event(self) -> "Prediction":
        """What is told that something came, by `set`."""
        return self

    def wait(self) -> None:
        """The body did not come whole, unless it did: it has a while."""
        if self.more_body and not self.response_complete and self._slow is None:
            loop = self._connection.loop
            self._slow = loop.call_later(door.BODY_TIMEOUT_S, self._refuse, door.too_slow())

    def set(self) -> None:
        """More of the body came, its end, or the client left."""
        if self.response_complete:
            return
        if self.disconnected:
            self._end()
        elif len(self.body) > MAX_BODY_BYTES:
            self._refuse(door.too_large())
        elif self.more_body:
            self._connection.flow.resume_reading()
        else:
            self._ask()

    def _ask(self) -> None:
        server = self._server
        try:
            timeout_s = min(door.timeout_of(self._headers), server.config.timeout_s)
            self._request, texts = server.read(bytes(self.body))
            self._texts, self._begin = len(texts), time.perf_counter()
            self._asked = server.batcher.start(texts, timeout_s, self._answered)
        except Exception as error:  # noqa: BLE001 - the last line: no trace reaches a client
            self._refuse(refusal_of(error))

    def _answered(self, found: Answer | Exception) -> None:
        if self.response_complete or self.disconnected:
            return
        if isinstance(found, Exception):
            self._refuse(refusal_of(found))
            return
        server, request = self._server, self._request
        assert request
        try:
            server.metrics.answered(self._texts, time.perf_counter() - self._begin)
            self._send(server.reply(request, found))
        except Exception as error:  # noqa: BLE001 - others of the batch are to be answered yet
            self._refuse(refusal_of(error))

    def _refuse(self, refusal: RefusedError) -> None:
        self._send(door.refused(refusal, self._identity))

    def _send(self, reply: Reply) -> None:
        self._end()
        self.response_complete = True
        self._server.metrics.count(PREDICT, reply.status)
        connection = self._connection
        parts = [STATUS_LINE[reply.status]]
        for name, value in connection.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        lines = [f"{name}: {value}\r\n" for name, value in reply.headers.items()]
        lines.append(f"content-length: {len(reply.body)}\r\nx-request-id: {self._identity}\r\n")
        if not self.keep_alive:
            lines.append("connection: close\r\n")
        lines.append("\r\n")
        parts += ("".join(lines).encode("latin-1"), reply.body)
        connection.transport.write(b"".join(parts))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def _end(self) -> None:
        """Nobody waits any more."""
        if self._slow:
            self._slow.cancel()
        if self._asked is not None:
            self._server.batcher.leave(self._asked)
            self._asked = None


def connections(find: Find) -> type[HttpToolsProtocol]:
    """What uvicorn shall make of each connection (its `http`); `find` gives the server if ready."""

    class Connection(HttpToolsProtocol):
        """Looks at the head of a request, and answers those for predictions."""

        prediction: Prediction | None = None
        """The last request, if it was for one."""

        def on_headers_complete(self) -> None:
            """Begin a prediction, or what else it is."""
            server = find()
            if isinstance(server, Server) and is_plain(self, server):
                self.scope["method"] = "POST"
                self.prediction = Prediction(self, server)
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


def is_plain(connection: HttpToolsProtocol, server: Server) -> bool:
    """Whether a request is for predictions, and nothing about it is unusual."""
    before = connection.cycle
    return (
        connection.url.decode("latin-1") == server.config.route + PREDICT
        and connection.parser.get_method() == b"POST"
        and connection.parser.get_http_version() == "1.1"
        and not connection.parser.should_upgrade()
        and not connection.expect_100_continue
        and not connection.root_path
        and not connection.flow.write_paused
        and (before is None or before.response_complete)
        and server.tracing is None
    )
