"""Clusters that let anyone in are refused."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from cluster.access import asks_for_tokens, require_tokens
from jobs.errors import ClusterError


@pytest.fixture
def dashboard() -> Iterator[Callable[[str], str]]:
    """Starts what answers like Ray's dashboard in a mode; its host and port."""
    servers = []

    def start(mode: str) -> str:
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path == "/api/authentication_mode"
                body = json.dumps({"authentication_mode": mode}).encode()
                self.send_response(200 if is_known else 404)
                self.end_headers()
                self.wfile.write(body if is_known else b"{}")

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_cluster_with_tokens_is_used(dashboard: Callable[[str], str]) -> None:
    require_tokens(dashboard("token"), insecure_local=False)


def test_an_open_cluster_is_refused_unless_it_is_this_machine_s_and_wanted(
    dashboard: Callable[[str], str],
) -> None:
    place = dashboard("disabled")
    with pytest.raises(ClusterError, match=r"requires no token, so anyone.*--insecure-local"):
        require_tokens(place, insecure_local=False)
    require_tokens(f"http://{place}", insecure_local=True)


def test_an_open_cluster_elsewhere_is_always_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    # a name that resolves nowhere: nobody answers, and this process would call it without a token
    with pytest.raises(ClusterError, match=r"for clusters on 127\.0\.0\.1.*head\.invalid"):
        require_tokens("head.invalid:8265", insecure_local=True)


def test_without_a_dashboard_the_way_this_process_calls_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert asks_for_tokens("head.invalid:8265")
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert not asks_for_tokens("head.invalid:8265")
