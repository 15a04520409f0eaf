"""What our rules make of HAProxy, shown on the program itself."""

import socket
import subprocess
from pathlib import Path

import httpx

from cluster import ingress
from tests.builders import eventually, free_port

CONFIGURATION = """
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    log 127.0.0.1:{log_port} local0 info
    option httplog
frontend http_frontend
    bind 127.0.0.1:{port}
    http-request return status 503 if {{ path /fails }}
    http-request return status 200
"""


def test_only_requests_that_fail_are_logged(tmp_path: Path) -> None:
    settings = ingress.environment(tmp_path / "ingress", lambda _: free_port())
    program = settings["RAY_SERVE_HAPROXY_BINARY_PATH"]
    configuration, port = tmp_path / "haproxy.cfg", free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.settimeout(5)
        text = CONFIGURATION.format(port=port, log_port=log.getsockname()[1])
        configuration.write_text(text, encoding="utf-8")
        url = f"http://127.0.0.1:{port}"
        with subprocess.Popen([program, "-db", "-f", str(configuration)]) as running:
            try:
                assert eventually(lambda: _answers(url))
                assert [httpx.get(f"{url}/{n}").status_code for n in range(20)] == [200] * 20
                assert httpx.get(f"{url}/fails").status_code == 503
                while b" 503 " not in (line := log.recv(4096)):
                    assert b" 200 " not in line
                assert b"GET /fails" in line
            finally:
                running.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False
