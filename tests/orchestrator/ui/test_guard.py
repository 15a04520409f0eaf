"""Who is answered: every route, every spelling of a path, and streams that go on."""

import http.client
import itertools
from pathlib import Path

import httpx
import pytest
from starlette.routing import BaseRoute

from orchestrator.records import runs
from orchestrator.ui.access import Tokens
from orchestrator.ui.app import create_application, routes_of
from orchestrator.ui.operations import Place
from serve.http import auth
from tests.orchestrator.ui import stored
from tests.orchestrator.ui.asking import client
from tests.orchestrator.ui.stored import Stored
from tests.serve.live import on_socket

BUTTONS = {
    "/api/runs/{identity}/cancel",
    "/api/models/{name}/{version}/promote",
    "/api/models/{name}/rollback",
    "/api/endpoints/{name}/undeploy",
}


def test_a_read_token_changes_nothing_on_any_route(full: Stored, tmp_path: Path) -> None:
    routes = routes_of(full.storage, Place(full.storage.url, tmp_path)).routes
    paths = {path for path in map(path_of, routes) if path.startswith("/api/")}
    assert paths > BUTTONS
    values = {"identity": full.running, "name": "reviews", "version": full.versions[0]}
    before = content(full.storage.folder)
    with client(full.storage, tmp_path) as reader:
        for path, method in itertools.product(paths, ("POST", "PUT", "PATCH", "DELETE", "QUERY")):
            answer = reader.request(method, path.format(**values))
            assert (answer.status_code, "scope operate" in answer.text) == (403, True), path
        for path in {path for path in paths if not path.endswith("/events")}:
            reader.get(path.format(**values))
        assert reader.get("/api/operations").json() == []
    assert content(full.storage.folder) == before


def test_nothing_is_said_without_a_token_or_to_another_host(full: Stored, tmp_path: Path) -> None:
    routes = routes_of(full.storage, Place(full.storage.url, tmp_path)).routes
    values = {"identity": full.running, "name": "reviews", "version": full.versions[0]}
    with client(full.storage, tmp_path, "operate") as reader:
        for route, method in itertools.product(routes, ("GET", "POST")):
            path = path_of(route).format(**values) or "/index.html"
            other = reader.request(method, path, headers={"Host": "evil.example"})
            assert other.status_code == 421, path
            if path.startswith("/api/"):
                for token in ("", "Bearer wrong", "Basic operate"):
                    refused = reader.request(method, path, headers={"Authorization": token})
                    assert (refused.status_code, list(refused.json())) == (401, ["error"])
        page = reader.get("/", headers={"Authorization": ""})
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self';")
        assert full.running not in page.text


@pytest.mark.parametrize(
    "path",
    ["//api/runs", "/%61pi/runs", "/api%2fruns", "/x/../api/runs", "/API/runs", "/api;/runs"],
)
def test_no_spelling_of_a_path_says_more_without_a_token(
    path: str, full: Stored, tmp_path: Path
) -> None:
    """Sent as it is: clients would normalise it."""
    names = frozenset({"127.0.0.1"})
    place, tokens = Place(full.storage.url, tmp_path), Tokens({})
    with on_socket(create_application(full.storage, place, tokens, names)) as url:
        host, port = url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert answer.status in (401, 404)
    assert full.running not in text


def test_a_stream_ends_once_its_token_is_revoked(full: Stored, tmp_path: Path) -> None:
    file, run = tmp_path / "tokens", runs.find(full.storage, full.running)
    token = auth.add_token(file, "eve", "read")
    auth.add_token(file, "olga", "operate")
    names = frozenset({"127.0.0.1"})
    place = Place(full.storage.url, tmp_path)
    application = create_application(full.storage, place, Tokens({}, file), names)
    headers = {"Authorization": f"Bearer {token}"}
    with (
        on_socket(application) as url,
        httpx.stream("GET", f"{url}/api/runs/{run.id}/events", headers=headers, timeout=30) as said,
    ):
        pieces = said.iter_text()
        assert "accuracy 0.8000" in next(pieces)
        auth.revoke_token(file, "eve")
        stored.say(run, "fit", "6/90 loss 0.1000, what is said later")
        assert "what is said later" not in "".join(pieces)


def test_names_that_commands_could_take_for_options_are_refused(
    full: Stored, tmp_path: Path
) -> None:
    with client(full.storage, tmp_path, "operate") as operator:
        for path in ("runs/--help/cancel", "models/-x/rollback", "endpoints/--help/undeploy"):
            refused = operator.post(f"/api/{path}")
            assert (refused.status_code, "is not valid" in refused.json()["error"]) == (422, True)
        assert operator.get("/api/operations").json() == []


def path_of(route: BaseRoute) -> str:
    """The path of a route, or the prefix of a mount."""
    return str(getattr(route, "path", ""))


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the leases, which their holders renew."""
    found = (path for path in folder.rglob("*") if path.is_file() and "leases" not in path.parts)
    return {str(path): path.read_bytes() for path in found}
