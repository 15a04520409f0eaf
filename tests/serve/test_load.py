"""The load generator measures a server correctly, even one that stalls."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
import uvicorn

from jobs.errors import DeployError
from orchestrator.cli.load import broken_promises
from serve.tools import load_generator
from serve.tools.load_generator import LoadResult, Plan
from serve.tools.stream_times import DONE, read_stream
from tests.builders import eventually


class Stalling:
    """Answers at once, except during one second in which all requests wait."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.fail_every = 0
        self.count = 0
        self.model: dict[str, Any] = {}
        self.asked: tuple[str, Any] | None = None
        self.headers: dict[bytes, bytes] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""
        body = (await receive())["body"]
        status = 200
        if scope["method"] == "POST":
            self.asked, self.headers = (scope["path"], json.loads(body)), dict(scope["headers"])
            self.count += 1
            self.began = self.began or time.monotonic()
            while 0.5 < time.monotonic() - self.began < 1.5:
                await asyncio.sleep(0.01)
            if self.fail_every and self.count % self.fail_every == 0:
                status = 503
        headers = [(b"x-model-version", b"v1"), (b"x-batch-size", b"2")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(self.model).encode()})


@pytest.fixture
def app() -> Stalling:
    return Stalling()


@pytest.fixture
def url(app: Stalling) -> Iterator[str]:
    """The application on a real socket."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert eventually(lambda: server.started, within_s=10)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def test_an_open_loop_sees_a_stall_that_a_closed_one_hides(url: str, app: Stalling) -> None:
    """A busy machine has stalls of its own, of which another attempt has none."""
    for _ in range(4):
        app.began = None
        opened = asyncio.run(load_generator.run(Plan(url, 3.0, rate=100), ["a", "b"]))
        if opened.latency_ms["p50"] < 300:
            break
    assert 200 < opened.requests < 400
    assert opened.latency_ms["p90"] > 500
    assert opened.latency_ms["p50"] < 300
    for _ in range(4):
        app.began = None
        closed = asyncio.run(load_generator.run(Plan(url, 3.0, concurrency=1), ["a", "b"]))
        if closed.latency_ms["p99"] < 500:
            break
    assert closed.latency_ms["p99"] < 500
    assert closed.latency_ms["max"] > 900


def test_failures_versions_and_texts_are_counted(url: str, app: Stalling) -> None:
    app.fail_every = 4
    plan = Plan(url, 1.0, concurrency=4, texts_per_request=8)
    found = asyncio.run(load_generator.run(plan, load_generator.sentences()))
    assert set(found.statuses) == {"200", "503"}
    assert found.error_rate == pytest.approx(0.25, abs=0.05)
    assert found.versions == {"v1": found.statuses["200"]}
    assert found.texts_per_s == pytest.approx(8 * found.statuses["200"] / found.seconds)
    assert found.batch_rows == 2
    assert sum(count for _, count in found.histogram) == found.statuses["200"]


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ({"task": "text-classification"}, "/predict", {"inputs": "a"}),
        ({"is_pair": True}, "/predict", {"inputs": {"text": "a", "text_pair": "a"}}),
        (
            {"task": "causal-lm"},
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "a"}],
                "max_tokens": 41,  # of a mean of 32
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
    ],
)
def test_each_kind_of_model_is_asked_as_it_wants(
    url: str, app: Stalling, model: dict[str, Any], path: str, body: Any
) -> None:
    app.model = model
    plan = Plan(url, 0.05, concurrency=1, headers={"Authorization": "Bearer mine"})
    asyncio.run(load_generator.run(plan, ["a"]))
    assert app.asked == (path, body)
    assert app.headers[b"content-type"] == b"application/json"
    assert app.headers[b"authorization"] == b"Bearer mine"


def test_a_language_model_is_not_asked_with_lists(url: str, app: Stalling) -> None:
    app.model = {"task": "causal-lm"}
    with pytest.raises(DeployError, match="one conversation per request"):
        asyncio.run(load_generator.run(Plan(url, 0.1, texts_per_request=2), ["a"]))


def test_an_endpoint_that_is_not_there_ends_in_words() -> None:
    with pytest.raises(DeployError, match=r"127\.0\.0\.1:9/x cannot be reached"):
        asyncio.run(load_generator.run(Plan("http://127.0.0.1:9/x", 0.1), ["a"]))


def result(**fields: Any) -> LoadResult:
    values: dict[str, Any] = {
        "requests": 100,
        "seconds": 1.0,
        "statuses": {"200": 98, "503": 2},
        "texts_per_s": 98.0,
        "latency_ms": {"p50": 5.0, "p95": 40.0},
        "histogram": (),
        "versions": {},
        "batch_rows": 1.0,
    }
    return LoadResult(**{**values, **fields})


@pytest.mark.parametrize(
    ("limits", "errors", "broken"),
    [
        ({"p95": "50ms"}, "<5%", []),
        ({"p95": "30ms"}, None, ["p95 is 40.0 ms, over 30 ms"]),
        ({"p95": None}, "<=1%", ["2.00% of the requests failed, which is not <=1%"]),
        ({"p95_ttft": "200ms", "p95_tpot": "20ms"}, None, []),
        ({"p95_ttft": "100ms"}, None, ["p95_ttft is 120.0 ms, over 100 ms"]),
        ({"p95_tpot": "5ms"}, None, ["p95_tpot is unknown, over 5 ms"]),
    ],
)
def test_promises_are_checked(
    limits: dict[str, str | None], errors: str | None, broken: list[str]
) -> None:
    times = {} if broken[-1:] == ["p95_tpot is unknown, over 5 ms"] else {"p95": 12.0}
    measured = result(first_token_ms={"p95": 120.0}, token_ms=times)
    assert broken_promises(measured, limits, errors) == broken


def test_tokens_of_streams_are_timed() -> None:
    def event(usage: int | None = None, **delta: Any) -> bytes:
        choices = [] if usage else [{"delta": delta, "finish_reason": None}]
        body = {"choices": choices, **({"usage": {"completion_tokens": usage}} if usage else {})}
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n"

    async def lines(*, is_cut: bool) -> AsyncIterator[bytes]:
        """A token after 0.05 s, two more 0.05 s later."""
        yield event(role="assistant", content="")
        await asyncio.sleep(0.05)
        yield event(content="a")
        await asyncio.sleep(0.05)
        for line in (event(content="bc"), b"\n", event(usage=3), *([] if is_cut else [DONE])):
            yield line

    due = time.perf_counter()
    times = asyncio.run(read_stream(lines(is_cut=False), due))
    whole_s = time.perf_counter() - due
    assert times.tokens == 3
    assert 0.05 <= times.first_s < whole_s - 0.04
    assert times.token_s is not None
    assert 0.02 <= times.token_s <= (whole_s - times.first_s) / 2
    with pytest.raises(aiohttp.ClientPayloadError, match="no last event"):
        asyncio.run(read_stream(lines(is_cut=True), due))


def test_the_sentences_are_many_and_of_different_lengths() -> None:
    lengths = [len(sentence.split()) for sentence in load_generator.sentences()]
    assert len(lengths) >= 50
    assert min(lengths) <= 3
    assert max(lengths) >= 20


def test_a_load_whose_every_request_failed_is_no_success() -> None:
    lost = result(statuses={"404": 1130}, requests=1130)
    assert broken_promises(lost, {}, None) == ["all 1,130 requests failed (status 404)"]
