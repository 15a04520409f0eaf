"""The fast path on a real socket: packets and connections, where it differs from ASGI."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from serve.config import ReplicaConfig
from serve.http import app, asgi
from serve.http.fast_path import connections
from serve.tasks.text_classification import routes
from serve.tasks.text_classification.handler import ClassificationHandler, load
from serve.version import ModelVersion
from tests.serve.live import on_socket

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def server(version: ModelVersion) -> Iterator[ClassificationHandler]:
    """A server of the tiny model."""
    made = load(ReplicaConfig(version, engine="torch-fp32"))
    yield made
    made.client.close()


@pytest.fixture
def client(server: ClassificationHandler) -> Iterator[socket.socket]:
    """A connection to the server."""
    app.install(server)
    with (
        on_socket(app.guarded(routes.api), connections(app.current_handler)) as url,
        contextlib.closing(socket.create_connection(address(url), timeout=60)) as made,
    ):
        yield made
    app._current.clear()


def address(url: str) -> tuple[str, int]:
    """Host and port of the server."""
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def request(text: str, *headers: str) -> bytes:
    """A request for a prediction."""
    body = json.dumps({"inputs": text})
    lines = ("POST /predict HTTP/1.1", "host: here", "content-type: application/json", *headers)
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", body)).encode()


def answer(client: socket.socket) -> tuple[int, Any, http.client.HTTPMessage]:
    """Status, body and headers of the next answer."""
    found = http.client.HTTPResponse(client)
    found.begin()
    return found.status, json.loads(found.read()), found.headers


def answers(client: socket.socket, number: int) -> list[bytes]:
    """Returns the received bytes once they have this many answers."""
    came = b""
    while came.count(b"HTTP/1.1 ") < number or not came.endswith(b"}"):
        came += client.recv(65536)
    return came.split(b"HTTP/1.1 ")[1:]


def test_requests_in_one_packet_are_answered_in_their_order(client: socket.socket) -> None:
    health = b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n"
    wrong = request("a").replace(b"application/json", b"text/plain")
    client.sendall(
        request("a superb film") + health + wrong + request("a dull film") + request("x") + health
    )
    found = answers(client, 6)
    assert [part[:3] for part in found] == [b"200", b"200", b"415", b"200", b"200", b"200"]
    labels = [json.loads(part.split(b"\r\n\r\n")[1]).get("label") for part in found]
    assert labels[:4] == ["positive", None, None, "negative"]
    assert [label is None for label in labels[4:]] == [False, True]


def test_a_request_may_come_byte_by_byte_and_in_chunks(client: socket.socket) -> None:
    for byte in request("a superb film"):
        client.sendall(bytes([byte]))
    assert answer(client)[:2] == (200, {"label": "positive", "score": pytest.approx(1, abs=0.5)})
    chunked = request("", "transfer-encoding: chunked").split(b"content-length")[0]
    client.sendall(chunked + b"\r\n")
    for piece in (b'{"inputs": ', b'"a dull', b' film"}'):
        time.sleep(0.02)
        client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    client.sendall(b"0\r\n\r\n")
    assert answer(client)[1]["label"] == "negative"


def test_a_connection_outlives_refusals_and_ends_when_the_client_wishes(
    client: socket.socket,
) -> None:
    for body in (request("a", "x-request-timeout-seconds: soon"), request("a")[:-1] + b"!"):
        client.sendall(body)
        status, refusal, headers = answer(client)
        assert status == 400
        assert refusal["error"]["request_id"] == headers["x-request-id"]
    client.sendall(request("a superb film", "x-request-id: mine", "connection: close"))
    status, found, headers = answer(client)
    assert (status, found["label"], headers["x-request-id"]) == (200, "positive", "mine")
    assert headers["connection"] == "close"
    assert headers["date"]
    assert client.recv(1) == b""


def test_an_answer_that_comes_too_late_or_not_at_all(
    client: socket.socket,
    server: ClassificationHandler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, held = server.client.launch, threading.Event()  # type: ignore[attr-defined]

    def fail(rows: Any) -> Any:
        held.wait(60)
        raise RuntimeError("a secret of the engine")

    with monkeypatch.context() as patch:
        patch.setattr(server.client, "launch", fail)
        client.sendall(request("a", "x-request-timeout-seconds: 0.1"))
        assert answer(client)[0] == 504
        held.set()
        client.sendall(request("b"))
        status, refusal, _ = answer(client)
    assert (status, refusal["error"]["code"]) == (500, "internal")
    assert "secret" not in str(refusal)
    assert "a secret of the engine" in caplog.text
    client.sendall(request("a superb film"))
    assert answer(client)[1]["label"] == "positive"
    assert server.client.launch == run  # type: ignore[attr-defined]
    assert server.load.requests == 0


def test_the_time_of_a_body_ends_with_the_body(
    client: socket.socket, server: ClassificationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that arrives in parts is answered however long the engine takes."""
    launch = server.client.launch  # type: ignore[attr-defined]

    def slow(rows: Any) -> Any:
        threading.Event().wait(3.3)
        return launch(rows)

    monkeypatch.setattr(asgi, "BODY_TIMEOUT_S", 3.0)
    monkeypatch.setattr(server.client, "launch", slow)
    sent = request("a superb film")
    client.sendall(sent[:-9])
    threading.Event().wait(0.05)
    client.sendall(sent[-9:])
    assert answer(client)[0] == 200


def test_a_client_that_sends_on_without_reading_is_not_read_from_for_ever(
    client: socket.socket, server: ClassificationHandler
) -> None:
    before = server.metrics.requests.labels("/predict", "200")._value.get()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)  # noqa: FBT003 - the socket's own name
    packet, sent, deadline = request("a") * 100, 0, time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            sent += client.send(packet[sent % len(packet) :])
    done = server.metrics.requests.labels("/predict", "200")._value.get() - before
    assert 0 < done < sent / len(request("a"))
