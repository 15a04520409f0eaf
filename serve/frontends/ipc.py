"""What a replica and its fronts tell each other, many messages in a packet."""

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


class Hello(NamedTuple):
    """To a new front: what it answers with."""

    config: ReplicaConfig
    choice: Choice
    tokenizer: Tokenizer


class Listen(NamedTuple):
    """To a front: take requests at an address, as the others do."""

    host: str
    port: int
    behind: str
    """URL of the replica, for all that a front does not answer itself."""


class Adjust(NamedTuple):
    """To a front: what changed of its configuration."""

    changes: Mapping[str, Any]


class Listening(NamedTuple):
    """To the replica: requests may come."""


class Drain(NamedTuple):
    """To a front: take no more requests, and end when all are answered."""


class Ask(NamedTuple):
    """To the replica: give the scores of some rows."""

    number: int
    rows: Sequence[Row]
    began: float
    """By the machine's monotonic clock."""


class Left(NamedTuple):
    """To the replica: nobody waits for this any more."""

    number: int


class Found(NamedTuple):
    """To a front: the scores, or why there are none."""

    number: int
    found: Answer | Exception


class Counted(NamedTuple):
    """To the replica: what a front did since it last told."""

    requests: Counter[tuple[str, int]]
    """By path and status."""
    callers: Counter[str]
    texts: int
    latencies: Sequence[int]
    """Of each bucket by itself."""
    total_s: float


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    factory = uvicorn.Config("").get_loop_factory()
    return factory() if factory else asyncio.new_event_loop()


def bound(host: str, port: int, *, is_shared: bool) -> socket.socket:
    """A socket at an address; a shared one where others, shared too, are: they take turns.

    Raises OSError where it is taken.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


class Channel(asyncio.Protocol):
    """One end of a pair of connected sockets between two processes that trust each other."""

    def __init__(self, take: Callable[[Any], None], end: Callable[[], None]) -> None:
        """`take` is given each message, `end` is called when the other end is gone."""
        self._take, self._end = take, end
        self._transport: asyncio.WriteTransport | None = None
        self._came, self._sent = bytearray(), list[Any]()

    def send(self, message: Any) -> None:
        """Send a message with all others of this turn of the event loop."""
        self._sent.append(message)
        if len(self._sent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand over the messages of every packet that is whole."""
        self._came += data
        while len(self._came) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._came)[0]
            if len(self._came) < end:
                return
            messages = pickle.loads(bytes(self._came[_SIZE.size : end]))
            del self._came[:end]
            for message in messages:
                self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell that the other end is gone."""
        self._transport = None
        self._end()

    def _flush(self) -> None:
        packet, self._sent = pickle.dumps(self._sent, pickle.HIGHEST_PROTOCOL), []
        if self._transport:
            self._transport.write(_SIZE.pack(len(packet)) + packet)
