"""What our rules make of HAProxy, shown on the program itself."""

import contextlib
import http.client
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster import ingress
from tests.haproxy import running


class Staying(http.server.BaseHTTPRequestHandler):
    """A replica that tells its port."""

    protocol_version = "HTTP/1.1"
    has_answered = False

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("x-port", str(self.server.server_address[1]))
        self.send_header("content-length", "0")
        self.end_headers()
        self.has_answered = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Leaving(Staying):
    """One that ends the connection when it is asked again."""

    def do_POST(self) -> None:
        """Answer, or leave."""
        if self.has_answered:
            self.close_connection = True
        else:
            super().do_POST()


def test_only_requests_that_fail_are_logged(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.settimeout(60)
        with running(tmp_path, log_port=log.getsockname()[1]) as proxy:
            url = f"http://{proxy.host}"
            with httpx.Client(base_url=url, timeout=60) as client:
                assert [client.get("/works").status_code for _ in range(20)] == [200] * 20
                assert client.get("/fails").status_code == 503
            while b" 503 " not in (line := log.recv(4096)):
                assert b" 200 " not in line
            assert b"GET /fails" in line


@pytest.mark.parametrize("size", [5, 14_000])
def test_a_replica_that_ends_loses_no_request_whose_body_comes_later(
    tmp_path: Path, size: int
) -> None:
    with replica() as first, replica() as second, connected(tmp_path, first, second) as client:
        for _ in range(10):
            ask(client, size)
            time.sleep(0.02)
            client.send(bytes(size))
            with client.getresponse() as answer:
                assert answer.status == 200


def test_a_body_that_comes_too_slowly_is_refused_before_it_reaches_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress, "BODY_S", "1")
    with replica() as only, connected(tmp_path, only) as client:
        ask(client, 5)
        client.send(b"hel")
        with client.getresponse() as answer:
            assert answer.status == 408
            assert json.loads(answer.read())["error"]["code"] == "too_slow"


def test_a_connection_that_outlives_its_haproxy_is_answered_by_the_next(tmp_path: Path) -> None:
    with replica(Staying) as after, running(tmp_path) as proxy:
        with replica(Staying) as before:
            proxy.reload(before)
            kept, unused = (http.client.HTTPConnection(proxy.host, timeout=60) for _ in range(2))
            unused.connect()
            assert port_of(kept) == before
        proxy.reload(after)  # nothing listens at the other port by now
        for client in (kept, unused):
            assert port_of(client) == after
            client.close()


def port_of(client: http.client.HTTPConnection) -> int:
    """Of the replica that answers."""
    ask(client, 2)
    client.send(b"hi")
    with client.getresponse() as answer:
        assert answer.status == 200
        return int(answer.headers["x-port"])


@contextlib.contextmanager
def connected(folder: Path, *replicas: int) -> Iterator[http.client.HTTPConnection]:
    """A connection to HAProxy in front of replicas."""
    with (
        running(folder, *replicas) as proxy,
        contextlib.closing(http.client.HTTPConnection(proxy.host, timeout=60)) as client,
    ):
        yield client


def ask(client: http.client.HTTPConnection, size: int) -> None:
    """Send the head of a request with a body of so many bytes."""
    client.putrequest("POST", "/predict")
    client.putheader("content-length", size)
    client.endheaders()


@contextlib.contextmanager
def replica(kind: type[Staying] = Leaving) -> Iterator[int]:
    """The port of one."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
