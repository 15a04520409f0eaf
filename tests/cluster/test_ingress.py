"""What our rules make of HAProxy, shown on the program itself."""

import contextlib
import http.client
import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster import ingress
from tests.builders import eventually, free_port

FRONTEND = """
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    option redispatch 1
    retry-on {retry_on}
    log 127.0.0.1:{log_port} local0 info
    option httplog
frontend http_frontend
    bind 127.0.0.1:{port}
    http-request return status 503 if {{ path /fails }}
    http-request return status 200 if {{ path /works }}
    default_backend replicas
backend replicas
    http-reuse always
"""


class Leaving(http.server.BaseHTTPRequestHandler):
    """A replica that answers once, and ends the connection when it is asked again."""

    protocol_version = "HTTP/1.1"
    has_answered = False

    def do_POST(self) -> None:
        """Answer, or leave."""
        if self.has_answered:
            self.close_connection = True
            return
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.has_answered = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_only_requests_that_fail_are_logged(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.settimeout(5)
        with running(tmp_path, log_port=log.getsockname()[1]) as host:
            url = f"http://{host}"
            assert [httpx.get(f"{url}/works").status_code for _ in range(20)] == [200] * 20
            assert httpx.get(f"{url}/fails").status_code == 503
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


@contextlib.contextmanager
def connected(folder: Path, *replicas: int) -> Iterator[http.client.HTTPConnection]:
    """A connection to HAProxy in front of replicas."""
    with (
        running(folder, *replicas) as host,
        contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as client,
    ):
        yield client


def ask(client: http.client.HTTPConnection, size: int) -> None:
    """Send the head of a request with a body of so many bytes."""
    client.putrequest("POST", "/predict")
    client.putheader("content-length", size)
    client.endheaders()


@contextlib.contextmanager
def replica() -> Iterator[int]:
    """The port of one that leaves."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Leaving) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextlib.contextmanager
def running(folder: Path, *replicas: int, log_port: int = 9) -> Iterator[str]:
    """Host and port of HAProxy with our rules, in front of replicas."""
    settings = ingress.environment(folder / "ingress", lambda _: free_port())
    program, retry_on = (
        settings[f"RAY_SERVE_HAPROXY_{name}"] for name in ("BINARY_PATH", "RETRY_ON")
    )
    configuration, port = folder / "haproxy.cfg", free_port()
    text = FRONTEND.format(port=port, log_port=log_port, retry_on=retry_on)
    text += "".join(f"    server {n} 127.0.0.1:{n}\n" for n in replicas)
    configuration.write_text(text, encoding="utf-8")
    with subprocess.Popen([program, "-db", "-f", str(configuration)]) as process:
        try:
            assert eventually(lambda: answers(port))
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def answers(port: int) -> bool:
    """Whether it is there."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/works").status_code == 200
    except httpx.HTTPError:
        return False
