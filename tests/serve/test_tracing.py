"""Spans of requests reach a collector: a real server that speaks OpenTelemetry's protocol."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
import starlette.middleware
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from serve.config import ReplicaConfig
from serve.http import app, tracing
from serve.http.auth import digest
from serve.http.guard import RequestGuard
from serve.tasks.text_classification import routes
from serve.tasks.text_classification.handler import ClassificationHandler, load
from serve.version import ModelVersion
from tests.serve.live import on_socket

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TEXT = "a superb and moving film"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Requests that a collector, which the environment names, has received."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv(tracing.ENDPOINTS[0], f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield bodies
    collector.shutdown()
    collector.server_close()


def ask(server: ClassificationHandler, *requests: dict[str, Any]) -> list[int]:
    """Statuses of requests that are sent at the same time."""
    app.install(server)

    async def go() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(*(client.request(**each) for each in requests))

    try:
        return [answer.status_code for answer in asyncio.run(go())]
    finally:
        app._current.clear()


def spans_of(bodies: list[bytes]) -> list[Any]:
    """All received spans, which must belong to the model's service."""
    found = []
    for body in bodies:
        sent = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for group in sent.resource_spans:
            marks = {each.key: each.value.string_value for each in group.resource.attributes}
            assert marks["service.name"] == "reviews"
            found += [span for scope in group.scope_spans for span in scope.spans]
    return found


def test_a_request_its_wait_and_its_batch_are_one_trace(
    version: ModelVersion, collected: list[bytes]
) -> None:
    server = load(ReplicaConfig(version, engine="torch-fp32"))
    parent = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    infer = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
    codes = ask(
        server,
        {"method": "POST", "url": "/predict", "json": {"inputs": [TEXT] * 3}, "headers": parent},
        {"method": "POST", "url": f"/v2/models/{version.name}/infer", "json": infer},
        {"method": "POST", "url": "/predict", "json": {"inputs": ""}, "headers": {"host": "x"}},
        {"method": "POST", "url": "/predict", "json": {"wrong": TEXT}},
    )
    assert codes == [200, 200, 200, 422]
    assert server.tracing is not None
    server.tracing.close()
    server.client.close()
    assert not [body for body in collected if TEXT.encode() in body]

    spans = spans_of(collected)
    (asked,) = [span for span in spans if span.parent_span_id.hex() == CALLER]
    assert (asked.name, asked.trace_id.hex()) == ("POST /predict", TRACE)
    values = {each.key: each.value for each in asked.attributes}
    assert values["http.response.status_code"].int_value == 200
    queue, batch = [span for span in spans if span.parent_span_id == asked.span_id]
    assert (queue.name, batch.name) == ("queue", "batch")
    assert {span.trace_id.hex() for span in (queue, batch)} == {TRACE}
    assert asked.start_time_unix_nano <= queue.start_time_unix_nano
    assert queue.end_time_unix_nano == batch.start_time_unix_nano
    assert batch.start_time_unix_nano < batch.end_time_unix_nano <= asked.end_time_unix_nano
    sizes = {each.key: each.value.int_value for each in batch.attributes}
    assert sizes["winnow.texts"] == 3 <= sizes["winnow.batch.rows"]

    roots = [span for span in spans if not span.parent_span_id]
    assert sorted(span.name for span in roots) == ["POST", "POST /predict", "POST /predict"]
    (other,) = [span for span in roots if span.name == "POST"]
    below = [span.name for span in spans if span.parent_span_id == other.span_id]
    assert sorted(below) == ["batch", "queue"]


def test_a_failure_is_an_error_whose_words_stay_here(
    version: ModelVersion, collected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = load(ReplicaConfig(version, engine="torch-fp32"))

    async def fail(*_: object) -> None:
        raise RuntimeError(TEXT)

    monkeypatch.setattr(server, "score", fail)
    infer = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
    path = f"/v2/models/{version.name}/infer"
    assert ask(server, {"method": "POST", "url": path, "json": infer}) == [500]
    assert server.tracing is not None
    server.tracing.close()
    server.client.close()
    (span,) = spans_of(collected)
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert not [body for body in collected if TEXT.encode() in body]


def test_without_a_collector_there_are_no_spans(
    version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert tracing.tracing_of(version, "/predict") is None


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")  # Ray reads its environment when it is imported
def test_behind_ray_serve_a_request_is_checked_traced_and_counted_once(
    version: ModelVersion, collected: list[bytes]
) -> None:
    """A replica has a guard before Ray Serve's server, and one before the application."""
    from ray.serve._private import http_util

    token, path = "a token of somebody", f"/v2/models/{version.name}/infer"
    server = load(ReplicaConfig(version, engine="torch-fp32", token_hashes=(digest(token),)))
    outer = starlette.middleware.Middleware(RequestGuard, find_handler=app.current_handler)
    replica = http_util._apply_middlewares(app.guarded(routes.api), [outer])
    infer = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
    app.install(server)
    try:
        with (
            on_socket(replica) as url,
            httpx.Client(headers={"authorization": f"Bearer {token}"}, timeout=10) as client,
        ):
            answer = client.post(f"{url}{path}", json=infer)
            missing = client.get(f"{url}/nowhere", headers={"x-request-id": "not, valid"})
    finally:
        app._current.clear()
    assert (answer.status_code, missing.status_code) == (200, 404)
    assert missing.headers["x-request-id"] == missing.json()["error"]["request_id"]
    metrics = server.scrape().decode()
    assert 'winnow_serve_requests_total{path="/infer",status="200"} 1.0' in metrics
    assert f'winnow_serve_token_requests_total{{token="#{digest(token)[:8]}"}} 2.0' in metrics
    assert server.tracing is not None
    server.tracing.close()
    server.client.close()
    servers = [span for span in spans_of(collected) if span.kind == span.SPAN_KIND_SERVER]
    assert sorted(span.name for span in servers) == ["GET", "POST"]
