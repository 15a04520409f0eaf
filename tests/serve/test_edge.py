"""Routes reach HAProxy even while Ray Serve replaces its process."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster import ingress
from serve.deploy import routing
from serve.deploy.rollout import Counts, grown
from serve.deploy.routing import Route
from tests.builders import eventually
from tests.haproxy import Proxy, running
from tests.serve.live import on_socket

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SLOW_ROWS = 1_000_000
"""Lines of a map that delays a HAProxy for a second after it has read the routes."""


def tables(version: str) -> list[str]:
    """The texts of the maps with a route to a version."""
    found = routing.maps({"/reviews": Route(version, model="reviews")})
    return [routing.text_of(table) for table in found]


def known(proxy: Proxy) -> str:
    """The version to which the running HAProxy sends the route."""
    return proxy.told(f"show map {proxy.folder / ingress.STABLE}")


def test_a_haproxy_that_read_the_routes_before_they_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve.deploy import haproxy_client

    with running(tmp_path) as proxy:
        monkeypatch.setenv(ingress.FOLDER, str(proxy.folder))
        haproxy_client._write(tables("aaa"))
        assert "/_v/aaa\n" in known(proxy)
        slow = tmp_path / "slow.map"
        slow.write_text("".join(f"/{row} {row}\n" for row in range(SLOW_ROWS)), encoding="utf-8")
        proxy.start(more=f"    http-request set-var(txn.slow) path,map({slow})\n")
        assert eventually(lambda: proxy.cpu_s() > 0.1)
        assert not proxy.is_newest()  # it has read the first routes, and reads the slow map
        haproxy_client._write(tables("bbb"))
        assert proxy.is_newest()
        assert "/_v/bbb\n" in known(proxy)
        assert "aaa" not in known(proxy)


async def half_broken(scope: Any, _: Any, send: Any) -> None:
    """Answers one path with 500 and every other with 200."""
    status = 500 if scope["path"] == "/broken" else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_gate_counts_on_while_haproxy_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve.deploy import haproxy_client

    def totals() -> Counts:
        return haproxy_client.by_application(haproxy_client._totals())["replicas"]

    def ask(proxy: Proxy, *paths: str) -> None:
        for path in paths:
            httpx.get(f"http://{proxy.host}{path}", timeout=60)

    with on_socket(half_broken) as url:
        port = int(url.rpartition(":")[2])
        with running(tmp_path, port) as proxy:
            monkeypatch.setenv(ingress.FOLDER, str(proxy.folder))
            ask(proxy, *["/fine"] * 20)
            readings = [totals()]
            ask(proxy, "/fine", "/broken")
            readings.append(totals())
            proxy.reload(port)
            ask(proxy, "/fine", "/broken", "/broken")
            readings.append(totals())
    assert len({*readings[0], *readings[2]}) == 2  # processes
    assert grown(readings) == (5, 3)
