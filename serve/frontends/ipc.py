"""Messages between a replica and its frontend workers, and the channel that carries them."""

import asyncio
import pickle
import socket
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import uvicorn

from serve.batching.client import Answer
from serve.batching.rows import Row, Tokenizer
from serve.config import ReplicaConfig
from serve.engines.engine import Choice

_SIZE = struct.Struct("<Q")


class Configure(NamedTuple):
    """To a new worker: its configuration."""

    config: ReplicaConfig
    choice: Choice
    tokenizer: Tokenizer


class Listen(NamedTuple):
    """To a worker: accept requests at an address, which all workers share."""

    host: str
    port: int
    replica_url: str
    """URL of the replica, for requests that a worker does not answer."""


class Adjust(NamedTuple):
    """To a worker: changed fields of its configuration."""

    changes: Mapping[str, Any]


class Listening(NamedTuple):
    """To the replica: the worker accepts requests."""


class Drain(NamedTuple):
    """To a worker: accept no further requests, and end once all are answered."""


class ScoreRequest(NamedTuple):
    """To the replica: compute the scores of rows."""

    number: int
    """Identifies the request in the worker."""
    rows: Sequence[Row]
    began: float
    """Arrival of the request by the machine's monotonic clock, in seconds."""


class CancelRequest(NamedTuple):
    """To the replica: the client no longer waits for this request."""

    number: int


class ScoreResult(NamedTuple):
    """To a worker: the answer to a request, or the error that takes its place."""

    number: int
    result: Answer | Exception


class MetricsDelta(NamedTuple):
    """To the replica: a worker's counts since its last report."""

    requests: Counter[tuple[str, int]]
    """Requests by path and status."""
    callers: Counter[str]
    """Requests by the name of their token."""
    texts: int
    """Answered texts."""
    latencies: Sequence[int]
    """Requests in each bucket of the latency histogram, not cumulative."""
    total_s: float
    """Sum of the latencies."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Creates the fastest event loop that is installed: uvloop, or else asyncio's."""
    factory = uvicorn.Config("").get_loop_factory()
    return factory() if factory else asyncio.new_event_loop()


def bound(host: str, port: int, *, is_shared: bool) -> socket.socket:
    """Binds a TCP socket to an address.

    Args:
        host: Address; IPv6 if it contains a colon.
        port: Port; 0 for a free one.
        is_shared: Share the port with other shared sockets (SO_REUSEPORT); the kernel distributes
            connections among them.

    Raises:
        OSError: if the address is in use.
    """
    bound_socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound_socket.bind((host, port))
    except OSError:
        bound_socket.close()
        raise
    return bound_socket


class Channel(asyncio.Protocol):
    """One end of a socket pair between two processes that trust each other.

    A packet is the size of a pickle, 8 bytes, and the pickle of a list of messages.
    """

    def __init__(self, on_message: Callable[[Any], None], on_closed: Callable[[], None]) -> None:
        """Args: a callback for each message, and one for the end of the connection."""
        self._on_message, self._on_closed = on_message, on_closed
        self._transport: asyncio.WriteTransport | None = None
        self._received, self._unsent = bytearray(), list[Any]()

    def send(self, message: Any) -> None:
        """Sends a message, in one packet with all others of this turn of the event loop."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Passes on the messages of every complete packet."""
        self._received += data
        while len(self._received) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            messages = pickle.loads(bytes(self._received[_SIZE.size : end]))
            del self._received[:end]
            for message in messages:
                self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        """Reports that the connection is closed."""
        self._transport = None
        self._on_closed()

    def _flush(self) -> None:
        packet, self._unsent = pickle.dumps(self._unsent, pickle.HIGHEST_PROTOCOL), []
        if self._transport:
            self._transport.write(_SIZE.pack(len(packet)) + packet)
