"""The request guard in front of an application: one answer for a failure, one count an answer."""

import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import fastapi
import fastapi.responses
import httpx
import pytest

from serve.config import ReplicaConfig
from serve.http import app
from serve.tasks.text_classification import routes
from serve.tasks.text_classification.handler import ClassificationHandler, load
from serve.version import ModelVersion
from tests.serve.live import on_socket

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SECRET = "words of the failure"


@pytest.fixture(scope="module")
def handler(version: ModelVersion) -> Iterator[ClassificationHandler]:
    """The handler of the tiny classifier, whose application is behind the guard."""
    made = load(ReplicaConfig(version, engine="torch-fp32"))
    app.install(made)
    yield made
    app._current.clear()
    made.client.close()


def failing() -> fastapi.FastAPI:
    """An application whose routes fail before and during their answers."""
    api = app.create_application("It fails.")

    @api.get("/fails")
    async def fails() -> None:
        raise RuntimeError(SECRET)

    @api.get("/breaks")
    async def breaks() -> fastapi.responses.StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"the first piece"
            raise RuntimeError(SECRET)

        return fastapi.responses.StreamingResponse(pieces())

    return api


def counted(handler: ClassificationHandler, path: str) -> dict[str, float]:
    """Requests of a path by their status."""
    return {
        labels["status"]: value
        for name, value, labels in handler.metrics.samples(handler.load)
        if name == "winnow_serve_requests_total" and labels["path"] == path
    }


@pytest.mark.usefixtures("handler")
def test_a_failing_route_is_answered_once_and_its_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        on_socket(app.guarded(failing())) as url,
        contextlib.closing(
            http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        ) as connection,
    ):
        for _ in range(2):
            connection.request("GET", "/fails")
            used = connection.sock
            answer = connection.getresponse()
            assert answer.status == 500
            assert SECRET not in (text := answer.read().decode())
            assert json.loads(text)["error"]["code"] == "internal"
        assert connection.sock is used  # the server has not closed it
    assert [record.getMessage() for record in caplog.records] == ["a request failed"] * 2
    assert caplog.text.count(f"RuntimeError: {SECRET}") == 2


@pytest.mark.usefixtures("handler")
def test_a_stream_that_breaks_ends_incomplete_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        on_socket(app.guarded(failing())) as url,
        httpx.stream("GET", f"{url}/breaks", timeout=10) as answer,
    ):
        assert answer.status_code == 200
        pieces = answer.iter_bytes()
        assert next(pieces) == b"the first piece"
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            next(pieces)
    assert [record.getMessage() for record in caplog.records] == ["a request failed"]


def test_what_the_application_answers_is_counted_by_its_status(
    handler: ClassificationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError(SECRET)

    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a superb film"]}
    path = f"/v2/models/{handler.config.version.name}/infer"
    before = counted(handler, "/infer")
    with (
        on_socket(app.guarded(routes.api)) as url,
        httpx.Client(base_url=url, timeout=10) as client,
    ):

        def ask(path: str, body: Any) -> int:
            return client.post(path, json=body).status_code

        assert ask(path, {"inputs": [tensor]}) == 200
        assert ask("/v2/models/other/infer", {"inputs": [tensor]}) == 404
        assert ask(path, {"inputs": []}) == 422
        monkeypatch.setattr(handler, "score", fail)
        assert ask(path, {"inputs": [tensor]}) == 500
        assert client.post(path, content=b"{}").status_code == 415
        assert client.get("/health").status_code == 200
    assert before == {}
    assert counted(handler, "/infer") == {"200": 1, "404": 1, "422": 1, "500": 1, "415": 1}
    assert "200" not in counted(handler, "other")
