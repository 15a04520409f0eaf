"""The endpoint over HTTP, with the real application and a tiny real model behind it."""

import asyncio
import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers

from jobs.errors import CheckpointError, DeployError
from jobs.spec.serve import ServeSpec
from serve.config import ReplicaConfig, configure
from serve.http import app, asgi
from serve.http.asgi import MAX_BODY_BYTES
from serve.http.auth import Authenticator, hashes_of
from serve.http.fast_path import connections
from serve.tasks.text_classification import routes
from serve.tasks.text_classification.handler import ClassificationHandler, load
from serve.tasks.text_classification.schemas import MAX_CHARACTERS, MAX_TEXTS
from serve.version import ModelVersion
from tests.serve.live import on_socket, seen

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TOKEN = "a token of somebody"
JSON = {"content-type": "application/json"}
Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def server(version: ModelVersion) -> Iterator[ClassificationHandler]:
    """A server of the tiny model."""
    made = load(ReplicaConfig(version, engine="torch-fp32"))
    yield made
    made.client.close()


@pytest.fixture(params=["connection", "application"])
def ask(server: ClassificationHandler, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Sends a request through the whole application, on a socket with the fast path or without."""
    app.install(server)
    if request.param == "application":
        yield _asker()
    else:
        with (
            on_socket(app.guarded(routes.api), connections(app.current_handler)) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            yield client.request
    app._current.clear()


def _asker() -> Ask:
    def send(method: str, path: str, **options: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **options)

        return asyncio.run(go())

    return send


def test_a_replica_is_replaced_when_it_cannot_be_adjusted(version: ModelVersion) -> None:
    config = ReplicaConfig(version, engine="torch-fp32")
    read_elsewhere = replace(version, path="/elsewhere")
    limits = {"timeout_s": 1.0, "queue_tokens": 512, "batch_rows": 2, "idle_wait_s": 0.1}
    same = replace(config, version=read_elsewhere, **limits)  # type: ignore[arg-type]
    assert same.fingerprint == config.fingerprint
    assert same.adjustable == limits
    others: list[dict[str, Any]] = [
        {"version": replace(version, id="another")},
        {"engine": "onnx-fp32"},
        {"route": "/another"},
        {"token_hashes": ("one",)},
        {"fronts": 1},
    ]
    for change in others:
        assert replace(config, **change).fingerprint != config.fingerprint


def test_one_text_and_lists_and_more_labels(ask: Ask) -> None:
    one = ask("POST", "/predict", json={"inputs": "a superb film"})
    assert one.status_code == 200
    assert one.json()["label"] == "positive"
    assert one.headers["x-model-version"]
    assert float(one.headers["x-infer-ms"]) > 0
    several = ask("POST", "/predict", json={"inputs": ["a superb film", "a dull film"], "top_k": 5})
    assert [[found["label"] for found in row] for row in several.json()] == [
        ["positive", "negative"],
        ["negative", "positive"],
    ]
    assert several.json()[0][0]["score"] == pytest.approx(one.json()["score"], abs=1e-5)
    assert sum(found["score"] for found in several.json()[0]) == pytest.approx(1, abs=1e-5)


def test_long_inputs_are_cut_and_told_or_refused(ask: Ask) -> None:
    long = {"inputs": "dull " * 100}
    assert ask("POST", "/predict", json=long).headers["x-truncated"] == "true"
    refused = ask("POST", "/predict", json={**long, "truncate": False})
    assert refused.status_code == 422
    assert "limit of 32" in refused.json()["error"]["message"]


def test_the_whole_evaluation_set_scores_as_transformers_does(
    ask: Ask, version: ModelVersion, reviews: Path
) -> None:
    lines = (reviews / "eval.csv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.rsplit(",", 1)[0] for line in lines]
    answers = ask("POST", "/predict", json={"inputs": texts}).json()
    pipeline = transformers.pipeline("text-classification", version.path, device="cpu")
    for answer, expected in zip(answers, pipeline(texts), strict=True):
        assert answer["label"] == expected["label"]
        assert answer["score"] == pytest.approx(expected["score"], abs=1e-3)


HOSTILE: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b"null", 422),
    (b"[]", 422),
    (b"3", 422),
    (b'"text"', 422),
    (b"{}", 422),
    (b'{"inputs": null}', 422),
    (b'{"inputs": 3}', 422),
    (b'{"inputs": NaN}', 422),
    (b'{"inputs": []}', 422),
    (b'{"inputs": [[]]}', 422),
    (b'{"inputs": {"text": "a"}}', 422),
    (b'{"inputs": {"text": "a", "text_pair": "b"}}', 422),
    (b'{"inputs": "a", "extra": 1}', 422),
    (b'{"inputs": "a", "top_k": 0}', 422),
    (b'{"inputs": "a", "top_k": "many"}', 422),
    (b'{"inputs": "\\ud800"}', 400),
    (b'{"inputs": "\xff\xfe"}', 400),
    (b"[" * 100_000, 400),
    (b'{"inputs": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
    (json.dumps({"inputs": "x" * (MAX_CHARACTERS + 1)}).encode(), 422),
    (json.dumps({"inputs": ["x"] * (MAX_TEXTS + 1)}).encode(), 422),
    (b'{"inputs": "' + b"x" * MAX_BODY_BYTES + b'"}', 413),
    (b'{"inputs": ""}', 200),
    (b'{"inputs": "\\u0000"}', 200),
    (json.dumps({"inputs": "\ufdfa" * 1000}).encode(), 200),
    (json.dumps({"inputs": "👩‍👩‍👧‍👦\u202e\u200d" * 200}).encode(), 200),
]


@pytest.mark.parametrize(("body", "status"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bodies_end_in_one_shape_without_the_input(
    ask: Ask, body: bytes, status: int
) -> None:
    answer = ask("POST", "/predict", content=body, headers=JSON)
    assert answer.status_code == status, answer.text
    if status != 200:
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "type", "param", "request_id"}
        assert error["request_id"] == answer.headers["x-request-id"]
        assert len(answer.content) < 400
        assert "xxxx" not in answer.text


def worse() -> Iterator[tuple[str, bytes]]:
    """Hostile paths and bodies."""
    valid = b'{"inputs": ["a", "b"], "top_k": 2, "truncate": true}'
    for cut in range(len(valid)):
        yield "/predict", valid[:cut]
        yield "/predict", valid[:cut] + bytes([valid[cut] ^ 0x80]) + valid[cut + 1 :]
    values = ["null", "true", "-1", "1e400", "NaN", "Infinity", '""', "{}", "[]", "[[]]", "[{}]"]
    values += ['"\\u0000"', '"\\udfff"', '"\ufeff"', "9" * 5000, '{"text": []}', "[null, 1]"]
    for value in values:
        for field in ("inputs", "top_k", "truncate", "__proto__"):
            yield "/predict", f'{{"inputs": "a", "{field}": {value}}}'.encode()
        yield "/predict", f'{{"inputs": [{value}]}}'.encode()
        for field in ("name", "shape", "datatype", "data", "parameters"):
            tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
            body = json.dumps({"inputs": [{**tensor, field: "HERE"}]}).replace('"HERE"', value)
            yield "/v2/models/reviews/infer", body.encode()
    yield "/predict", b'{"inputs": "' + b"x" * 10 * 2**20 + b'"}'
    yield "/predict", json.dumps({"inputs": ["\ufdfa" * MAX_CHARACTERS] * 40}).encode()
    for encoding in ("utf-16", "utf-32", "utf-7", "utf-8-sig"):
        yield "/predict", '{"inputs": "a"}'.encode(encoding)
    for depth in (10, 100, 1000, 100_000):
        yield "/predict", b'{"inputs": ' * depth + b"1" + b"}" * depth
    huge = [2**63, -(2**63), 10**30, 0]
    for size in huge:
        tensor = {"name": "text", "shape": [size, size], "datatype": "BYTES", "data": ["a"]}
        yield "/v2/models/reviews/infer", json.dumps({"inputs": [tensor]}).encode()


def test_hundreds_of_hostile_bodies_end_in_no_error_of_ours(ask: Ask) -> None:
    bodies = list(dict.fromkeys(worse()))
    assert len(bodies) >= 200
    statuses = set()
    for path, body in bodies:
        answer = ask("POST", path, content=body, headers=JSON)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (path, body[:200], answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert set(error) == {"code", "message", "type", "param", "request_id"}, body[:200]
    assert statuses == {200, 400, 413, 422}


def test_what_is_not_json_or_not_post_is_refused(ask: Ask) -> None:
    form = ask("POST", "/predict", data={"inputs": "a"})
    assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert ask("GET", "/predict").status_code == 405
    assert ask("GET", "/nowhere").json()["error"]["code"] == "not_found"
    assert ask("DELETE", "/health").status_code == 405
    headers = {**JSON, "x-request-timeout-seconds": "soon"}
    assert ask("POST", "/predict", content=b'{"inputs": "a"}', headers=headers).status_code == 400
    many = {f"x-{number}": "1" for number in range(100)}
    assert ask("GET", "/health", headers=many).status_code == 431


def test_a_request_s_id_is_kept_when_it_is_one(ask: Ask) -> None:
    kept = ask("GET", "/nowhere", headers={"x-request-id": "order-66"})
    assert kept.json()["error"]["request_id"] == "order-66"
    made = ask("POST", "/predict", content=b"", headers={**JSON, "x-request-id": "a b\tc"})
    assert made.headers["x-request-id"] != "a b\tc"


def test_the_inference_protocol(ask: Ask, version: ModelVersion) -> None:
    name = version.name
    tensor = {
        "name": "text",
        "shape": [2],
        "datatype": "BYTES",
        "data": ["a superb film", "a dull film"],
    }
    answer = ask("POST", f"/v2/models/{name}/infer", json={"id": "7", "inputs": [tensor]}).json()
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert (answer["id"], answer["model_version"]) == ("7", version.id)
    assert outputs["label"]["data"] == ["positive", "negative"]
    assert outputs["scores"]["shape"] == [2, 2]
    metadata = ask("GET", f"/v2/models/{name}").json()
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert ask("GET", "/v2/health/ready").json() == {"ready": True}
    assert ask("GET", f"/v2/models/{name}/ready").json()["ready"]
    assert ask("GET", "/v2/models/other").status_code == 404
    for wrong in (
        {**tensor, "name": "picture"},
        {**tensor, "datatype": "FP32"},
        {**tensor, "shape": [3]},
        {**tensor, "data": [1, 2]},
    ):
        refused = ask("POST", f"/v2/models/{name}/infer", json={"inputs": [wrong]})
        assert refused.status_code == 422


def test_only_those_with_a_token_may_ask(
    request: pytest.FixtureRequest, server: ClassificationHandler, ask: Ask
) -> None:
    token = f"{TOKEN}, {request.node.name}"  # the server counts on
    digest = hashlib.sha256(token.encode()).hexdigest()
    unguarded = server.authenticator
    server.authenticator = Authenticator(("0" * 64, digest))
    try:
        body = {"inputs": "a superb film"}
        for header in (None, "", "Bearer", "Bearer wrong", f"Basic {token}", f"Bearer {token}x"):
            headers = {} if header is None else {"authorization": header}
            refused = ask("POST", "/predict", json=body, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert ask("GET", "/metrics", headers=headers).status_code == 401
            assert ask("GET", "/health", headers=headers).status_code == 200
        allowed = {"authorization": f"Bearer {token}"}
        assert ask("POST", "/predict", json=body, headers=allowed).status_code == 200
        metrics = ask("GET", "/metrics", headers=allowed)
        assert metrics.status_code == 200
        assert f'winnow_serve_token_requests_total{{token="#{digest[:8]}"}} 2.0' in metrics.text
    finally:
        server.authenticator = unguarded


def test_tokens_come_from_the_environment(
    version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ServeSpec.model_validate({"route": "/a", "auth": {"tokens_from": "WINNOW_TEST_TOKENS"}})
    with pytest.raises(DeployError, match="WINNOW_TEST_TOKENS, which is not set"):
        hashes_of(spec)
    monkeypatch.setenv("WINNOW_TEST_TOKENS", "one, two")
    config = configure(version, spec, "", is_gpu=False, token_hashes=hashes_of(spec))
    assert config.token_hashes == tuple(
        hashlib.sha256(word.encode()).hexdigest() for word in ("one", "two")
    )


def test_metrics_count_what_happened(ask: Ask) -> None:
    ask("POST", "/predict", json={"inputs": ["a", "b", "c"]})
    ask("POST", "/predict", content=b"{", headers=JSON)
    text = ask("GET", "/metrics").text
    assert 'winnow_serve_requests_total{path="/predict",status="200"}' in text
    assert 'winnow_serve_requests_total{path="/predict",status="400"}' in text
    for name in ("texts_total", "batches_total", "batch_tokens_total", "request_seconds_bucket"):
        assert f"winnow_serve_{name}" in text


def test_a_replica_that_is_still_loading_says_so() -> None:
    ask = _asker()
    for path in ("/health", "/v2/health/ready", "/metrics"):
        answer = ask("GET", path)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
    assert ask("GET", "/v2/health/live").json() == {"live": True}


def test_altered_weights_are_not_served(version: ModelVersion, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(version.path, copy)
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors was altered"):
        load(ReplicaConfig(replace(version, path=str(copy)), engine="torch-fp32"))


@pytest.fixture(params=["connection", "auto"])
def live(server: ClassificationHandler, request: pytest.FixtureRequest) -> Iterator[str]:
    """The application on a real socket, with the fast path or without."""
    app.install(server)
    http = connections(app.current_handler) if request.param == "connection" else request.param
    with on_socket(app.guarded(routes.api), http) as url:
        yield url
    app._current.clear()


@pytest.mark.parametrize(
    "part",
    [
        b'Content-Length: 15\r\n\r\n{"inputs": ',
        b'Transfer-Encoding: chunked\r\n\r\nb\r\n{"inputs": \r\n',
    ],
    ids=["length", "chunked"],
)
def test_a_client_that_sends_its_body_too_slowly_is_told(
    part: bytes, live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "BODY_TIMEOUT_S", 0.2)

    place = httpx.URL(live)
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with socket.create_connection((place.host, place.port or 0), timeout=10) as talk:
        talk.sendall(head + part)
        assert talk.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_texts_of_a_client_that_left_are_not_run(
    live: str, server: ClassificationHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "DISCONNECT_CHECK_S", 0.01)
    begun, held, ran = threading.Event(), threading.Event(), list[int]()
    run = server.client.launch

    def hold(rows: Any) -> Any:
        begun.set()
        held.wait(60)
        ran.append(len(rows))
        return run(rows)

    monkeypatch.setattr(server.client, "launch", hold)

    async def leave() -> None:
        async with httpx.AsyncClient() as client:
            first = asyncio.ensure_future(
                client.post(f"{live}/predict", json={"inputs": "a"}, timeout=60)
            )
            assert await _soon(begun.is_set)
            left = asyncio.ensure_future(
                client.post(f"{live}/predict", json={"inputs": ["b"] * 7}, timeout=60)
            )
            assert await _soon(lambda: server.client.load.requests == 2)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            assert await _soon(lambda: server.client.load.requests == 1)
            held.set()
            assert (await first).status_code == 200

    asyncio.run(leave())
    assert ran == [1]


async def _soon(is_so: Callable[[], bool]) -> bool:
    for _ in range(3000):
        if is_so():
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.browser
def test_the_playground_answers_in_a_real_browser(live: str) -> None:
    found = seen(f"{live}/#text=a superb film", until="ms in the engine")
    assert "positive</span>" in found
    assert "ms in the engine" in found


def test_links_name_the_public_route_and_not_the_path_of_the_version(
    server: ClassificationHandler,
) -> None:
    """Redirects and the OpenAPI document name the public route, not a version's path."""
    below = "/_v/0123456789ab/a/reviews"
    app.install(server)
    transport = httpx.ASGITransport(app.guarded(routes.api), root_path=below)

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://endpoint") as client:
            return await client.get(f"{below}{path}")

    redirect, document, docs = (asyncio.run(ask(path)) for path in ("", "/openapi.json", "/docs"))
    app._current.clear()
    assert redirect.headers["location"] == "http://endpoint/a/reviews/"
    assert document.json()["servers"] == [{"url": "/a/reviews"}]
    assert "'/a/reviews/openapi.json'" in docs.text
    assert "/_v/" not in redirect.text + document.text + docs.text


def test_the_openapi_document_describes_what_is_there(ask: Ask) -> None:
    paths = ask("GET", "/openapi.json").json()["paths"]
    assert {"/predict", "/health", "/metrics", "/v2/models/{name}/infer"} <= set(paths)
    assert "413" in paths["/predict"]["post"]["responses"]
