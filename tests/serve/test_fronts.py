"""Frontend workers give the replica's answers, and lose nothing when one ends."""

import asyncio
import contextlib
import functools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from serve.config import ReplicaConfig
from serve.frontends import supervisor, worker
from serve.frontends.ipc import bound
from serve.frontends.reverse_proxy import ReverseProxy
from serve.frontends.supervisor import FrontendSupervisor
from serve.http import app
from serve.http.asgi import MAX_BODY_BYTES
from serve.http.auth import digest
from serve.tasks.text_classification import routes
from serve.tasks.text_classification.handler import ClassificationHandler, load
from serve.version import ModelVersion
from tests.builders import eventually, free_port
from tests.serve.live import on_socket

TOKEN = "a token of somebody"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
TEXTS = ["a superb film", "a dull film", "dull " * 100, "", "a fine film " * 3]
FRONTS, CLIENTS = 2, 24
"""Enough clients that every worker has one."""
START_S = 300.0
"""How long a process may take that imports everything; beside others it is slow."""


class Alone:
    """A server with frontend workers."""

    def __init__(self, server: ClassificationHandler, behind: str) -> None:
        self.server = server
        self.fronts = FrontendSupervisor(server, FRONTS)
        with bound("127.0.0.1", 0, is_shared=True) as found:
            port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        asyncio.run(self.fronts.open("127.0.0.1", port, behind))
        assert len(self.listening()) == FRONTS

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "serve.frontends.worker" in process.cmdline():
                    found.append(process)
        return found

    def listening(self) -> list[psutil.Process]:
        """Workers that accept requests."""
        return [
            process
            for process in self.processes()
            if any(c.status == psutil.CONN_LISTEN for c in process.net_connections("tcp"))
        ]


@pytest.fixture(scope="module")
def alone(version: ModelVersion) -> Iterator[Alone]:
    config = ReplicaConfig(version, engine="torch-fp32", token_hashes=(digest(TOKEN),))
    server = load(config)
    app.install(server)
    with pytest.MonkeyPatch.context() as patch, on_socket(app.guarded(routes.api)) as behind:
        patch.setattr(supervisor, "READY_S", START_S)
        made = Alone(server, behind)
        yield made
        asyncio.run(made.fronts.close())
    assert not made.processes()
    app._current.clear()


@pytest.fixture
def held(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that batches wait for."""
    batcher, release = alone.server.client, threading.Event()
    run = batcher.launch

    def hold(rows: Any) -> Any:
        release.wait(120)
        return run(rows)

    monkeypatch.setattr(batcher, "launch", hold)
    yield release
    release.set()


def ask(url: str, text: object, **headers: str) -> httpx.Response:
    """Sends a prediction on a new connection."""
    return httpx.post(
        f"{url}/predict", json={"inputs": text}, headers={**HEADERS, **headers}, timeout=120
    )


get = functools.partial(httpx.get, timeout=60)
post = functools.partial(httpx.post, timeout=60)


def test_every_front_answers_as_the_replica_does(alone: Alone) -> None:
    async def directly(text: str) -> Any:
        body = json.dumps({"inputs": text}).encode()
        return json.loads((await alone.server.predict(body, 10)).body)

    seen = set()
    for number in range(40):
        text = TEXTS[number % len(TEXTS)]
        found = ask(alone.url, text)
        assert found.status_code == 200
        assert found.json()["label"] == asyncio.run(directly(text))["label"]
        assert found.json()["score"] == pytest.approx(asyncio.run(directly(text))["score"])
        assert ("x-truncated" in found.headers) == (len(text) > 100)
        seen.add(found.headers["x-request-id"][:8])
    assert len(seen) == FRONTS, "one process answered everything"


def test_lists_and_long_texts_come_back_in_order(alone: Alone) -> None:
    texts = [*TEXTS, "a superb film " * 500] * 10
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ask(alone.url, texts), range(8)))
    singles = {text: ask(alone.url, text).json()["label"] for text in set(texts)}
    for answer in found:
        assert [row["label"] for row in answer.json()] == [singles[text] for text in texts]
    fronts = alone.processes()
    assert len(fronts) == FRONTS
    for front in fronts:  # which start in seconds without it, in a quarter of the memory
        assert not [each.path for each in front.memory_maps() if "libtorch" in each.path]


@pytest.mark.parametrize(
    "task", ["text-classification", "token-classification", "sentence-embedding"]
)
def test_what_answers_in_a_front_imports_no_torch(task: str) -> None:
    words = [
        "import sys, serve.frontends.worker",
        "from serve.tasks.registry import endpoint_of",
        f"endpoint = endpoint_of({task!r})",
        "endpoint.application()",
        "handler = sys.modules[type(endpoint).__module__.replace('.endpoint', '.handler')]",
        "print(sorted({'torch', 'transformers', 'ray'} & sys.modules.keys()))",
    ]
    run = [sys.executable, "-c", "\n".join(words)]
    found = subprocess.run(run, capture_output=True, text=True, check=True, timeout=START_S)
    assert found.stdout.strip() == "[]"


def test_all_else_is_passed_on_to_the_replica(alone: Alone) -> None:
    assert get(f"{alone.url}/health").json()["name"] == alone.server.config.version.name
    assert "<html" in get(f"{alone.url}/").text
    assert get(f"{alone.url}/openapi.json").json()["info"]["title"] == "Winnow endpoint"
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a superb film"]}
    url = f"{alone.url}/v2/models/{alone.server.config.version.name}/infer"
    answer = post(url, json={"inputs": [tensor]}, headers=HEADERS)
    assert answer.json()["outputs"][0]["data"] == ["positive"]
    assert get(f"{alone.url}/nowhere?a=b", headers=HEADERS).status_code == 404
    assert get(f"{alone.url}/predict", headers=HEADERS).status_code == 405


def test_requests_are_passed_on_past_the_proxy_of_the_environment(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # nobody answers there

    async def go() -> httpx.Response:
        proxy = ReverseProxy(alone.url)
        transport = httpx.ASGITransport(proxy)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            answer = await client.get("http://test/health")
        await proxy._client.aclose()
        return answer

    assert asyncio.run(go()).json()["name"] == alone.server.config.version.name


@pytest.mark.parametrize(
    ("head", "statuses"),
    [
        (b"GET /\xff\xfe HTTP/1.1", {400, 404}),
        (b"GET //elsewhere.test/health HTTP/1.1", {401, 404}),
        (b"GET http://elsewhere.test/health HTTP/1.1", {200, 404}),
        (b"GET /health?a=%00&b=\x7f HTTP/1.1", {200, 400}),
        (b"GET /" + b"a" * 60_000 + b" HTTP/1.1", {400, 401, 404, 414, 431}),
        (b"GET /[::1 HTTP/1.1", {400, 401, 404}),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", {400, 401}),
        (b"GET /health HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket", {200, 400, 426}),
    ],
)
def test_hostile_requests_are_answered_here_or_by_the_replica(
    alone: Alone, head: bytes, statuses: set[int]
) -> None:
    """A hostile request is never forwarded to another host and never ends in a 5xx."""
    where = httpx.URL(alone.url)
    with socket.create_connection((where.host, where.port or 0), timeout=60) as talk:
        talk.sendall(head + b"\r\nHost: x\r\nConnection: close\r\n\r\n0\r\n\r\n")
        answer = talk.recv(65536)
    assert int(answer.split()[1]) in statuses, answer[:300]
    assert ask(alone.url, "a fine film").status_code == 200


def test_what_is_wrong_is_refused_at_the_front(alone: Alone) -> None:
    assert post(f"{alone.url}/predict", json={"inputs": "x"}).status_code == 401
    assert ask(alone.url, 5).status_code == 422
    assert ask(alone.url, "x" * MAX_BODY_BYTES).status_code == 413
    assert post(f"{alone.url}/v2/models/x/infer", json={}).status_code == 401


def test_the_replica_counts_what_fronts_answer(alone: Alone) -> None:
    def total() -> tuple[float, float, float]:
        samples = list(alone.server.metrics.samples(alone.server.load))

        def of(name: str, **labels: str) -> float:
            return sum(
                v for n, v, found in samples if n == name and labels.items() <= found.items()
            )

        return (
            of("winnow_serve_requests_total", path="/predict", status="200"),
            of("winnow_serve_token_requests_total"),
            of("winnow_serve_texts_total"),
        )

    before, since = total(), time.monotonic()

    def is_quiet() -> bool:
        """Workers report other requests every second."""
        nonlocal before, since
        if total() != before:
            before, since = total(), time.monotonic()
        return time.monotonic() - since > 5 * worker.REPORT_S

    assert eventually(is_quiet, within_s=60)
    for _ in range(10):
        assert ask(alone.url, ["a fine film", "a dull film"]).status_code == 200
    expected = (before[0] + 10, before[1] + 10, before[2] + 20)
    assert eventually(lambda: total() == expected, within_s=60)


def test_late_answers_full_queues_and_clients_that_left(
    alone: Alone, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = alone.server.client
    late = ask(alone.url, "a fine film", **{"x-request-timeout-seconds": "0.3"})
    assert late.status_code == 504
    assert eventually(lambda: batcher.load.requests == 0)
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            f"{alone.url}/predict", json={"inputs": "a fine film"}, headers=HEADERS, timeout=0.5
        )
    assert eventually(lambda: batcher.load.requests == 0)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, alone.url, "a fine film " * 20) for _ in range(2)]
        assert eventually(lambda: batcher.load.requests == 2)
        limits = batcher.limits
        monkeypatch.setattr(batcher, "limits", type(limits)(queue_tokens=1))
        refused = ask(alone.url, "one too many")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        held.set()
        assert [found.result().status_code for found in waiting] == [200, 200]


def test_a_failed_engine_is_told(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("the engine broke")

    with monkeypatch.context() as patch:
        patch.setattr(alone.server.client, "launch", fail)
        broken = ask(alone.url, "a fine film")
    assert broken.status_code == 500
    assert broken.json()["error"]["code"] == "internal"
    assert "broke" not in broken.text
    assert ask(alone.url, "a fine film").status_code == 200


def test_another_front_takes_the_place_of_a_lost_one(alone: Alone, held: threading.Event) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        waiting = [pool.submit(ask, alone.url, "a fine film") for _ in range(CLIENTS)]
        assert eventually(lambda: alone.server.client.load.requests == CLIENTS, within_s=60)
        victim = alone.listening()[0]
        victim.kill()
        assert eventually(lambda: alone.server.client.load.requests < CLIENTS)
        held.set()
        answers = [found.exception() or found.result().status_code for found in waiting]
    lost = sum(isinstance(found, httpx.HTTPError) for found in answers)
    assert answers.count(200) + lost == CLIENTS
    assert 0 < lost < CLIENTS  # those on the killed one's connections; HAProxy would ask again
    assert eventually(lambda: len(alone.listening()) == FRONTS, within_s=240)
    assert victim.pid not in {process.pid for process in alone.listening()}
    assert all(ask(alone.url, "a fine film").status_code == 200 for _ in range(20))


@contextlib.contextmanager
def opening(alone: Alone, port: int) -> Iterator["Future[None]"]:
    """Another worker of the same server, which is started at a port meanwhile."""
    fronts = FrontendSupervisor(alone.server, 1)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(asyncio.run, fronts.open("127.0.0.1", port, alone.url))
        try:
            yield opened
        finally:
            asyncio.run(fronts.close())


def test_a_front_whose_port_is_taken_ends_and_the_next_one_gets_it(alone: Alone) -> None:
    before = {process.pid for process in alone.processes()}

    def others() -> set[int]:
        return {process.pid for process in alone.processes()} - before

    with bound("127.0.0.1", 0, is_shared=False) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with opening(alone, port) as opened:
            assert eventually(lambda: len(others()) == 1)
            first = others()
            assert eventually(lambda: bool(others()) and not others() & first, within_s=240)
            assert not opened.done()
            taken.close()
            assert opened.result(START_S) is None
            assert ask(f"http://127.0.0.1:{port}", "a fine film").status_code == 200
    assert eventually(lambda: not others(), within_s=120)


def test_a_front_that_cannot_be_started_is_tried_again(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with bound("127.0.0.1", 0, is_shared=False) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with opening(alone, port) as opened:
        assert eventually(lambda: "a frontend worker cannot be started" in caplog.text)
        assert "No such file or directory: '/nowhere/python'" in caplog.text
        monkeypatch.undo()
        assert opened.result(START_S) is None
        assert ask(f"http://127.0.0.1:{port}", "a fine film").status_code == 200


SERVE = """
import sys
from serve.tools import local
from serve.config import ReplicaConfig
from serve.frontends import supervisor
from tests.serve.test_fronts import START_S, unpacked
supervisor.READY_S = START_S
local.run(unpacked(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), print)
"""


def unpacked(text: str) -> ReplicaConfig:
    """A configuration from another process."""
    return pickle.loads(bytes.fromhex(text))


@pytest.mark.e2e
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_fronts_end_with_the_process_they_stand_before(version: ModelVersion, ending: int) -> None:
    config = ReplicaConfig(version, engine="torch-fp32", fronts=FRONTS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, pickle.dumps(config).hex(), str(port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(_answers(url), within_s=START_S)
        whole = psutil.Process(process.pid).children()
        assert eventually(
            lambda: sum(1 for p in whole if p.net_connections("tcp")) == FRONTS, within_s=120
        )
        seen = {ask(url, "a fine film").headers["x-request-id"][:8] for _ in range(60)}
        assert len(seen) == FRONTS
        process.send_signal(ending)
        process.wait(60)
    finally:
        process.kill()
    assert eventually(lambda: not any(child.is_running() for child in whole), within_s=60)
    said = process.communicate()[0].decode()
    assert "Traceback" not in said, said


def _answers(url: str) -> Callable[[], bool]:
    def look() -> bool:
        try:
            return get(f"{url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    return look
