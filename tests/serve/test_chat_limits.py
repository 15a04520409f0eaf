"""What clients of a language model's endpoint cannot do to it and to each other."""

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from serve.config import ReplicaConfig
from serve.engines.generating import choice
from serve.http import app
from serve.tasks.causal_lm import routes
from serve.tasks.causal_lm.answer import Writer
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.vocabulary import MAX_GRAMMAR
from serve.version import ModelVersion
from tests.builders import eventually
from tests.serve.conftest import HeldAnswers
from tests.serve.test_tools import TAGGED, tokenizer_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Is a superb film good?"}], "temperature": 0}
QUEUE = 9000


@pytest.fixture(scope="module", params=["together", "one by one"])
def server(published: ModelVersion, request: pytest.FixtureRequest) -> Iterator[ChatHandler]:
    """A handler whose answers end at 4,000 tokens alone, in both ways of writing them."""
    long = replace(published, max_length=4096)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "one by one":
            patch.setattr(choice, "reason_for_one_by_one", lambda _: "as a test asks")
        made = ChatHandler(ReplicaConfig(long, batch_rows=1, queue_tokens=QUEUE))
        made.generator._ends = frozenset([2])
        app.install(made)
        asyncio.run(asked({**ASK, "max_tokens": 1}))  # the thread has chosen its way
    yield made
    app._current.clear()
    made.generator.close()


async def asked(body: Any, path: str = CHAT, **headers: str) -> httpx.Response:
    """The response to a body, which is JSON or will be."""
    content = body if isinstance(body, str) else json.dumps(body)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        given = {"content-type": "application/json", **headers}
        return await client.post(path, content=content, headers=given, timeout=60)


def schema_of(schema: Any) -> dict[str, Any]:
    """A request for an answer in the form of a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {**ASK, "max_tokens": 20, "response_format": form}


def test_answers_that_exceed_the_queue_together_are_refused_before_any_begins(
    server: ChatHandler,
) -> None:
    many = {"prompt": ["a film"] * 3, "n": 2, "max_tokens": 4000, "ignore_eos": True}
    refused = asyncio.run(asked(many, COMPLETIONS))
    assert refused.status_code == 422
    assert refused.json()["error"]["param"] == "n"
    assert "6 answers may take 24,0" in refused.json()["error"]["message"]
    assert server.load.requests == 0


def test_answers_that_do_not_fit_beside_others_are_refused_before_any_begins(
    server: ChatHandler, held_answers: HeldAnswers
) -> None:
    async def both() -> None:
        first = asyncio.create_task(asked({**ASK, "max_tokens": 4000, "ignore_eos": True}))
        while not server.load.requests:
            await asyncio.sleep(0.01)
        seen = list[int]()
        second = asyncio.create_task(asked({**ASK, "max_tokens": 2900, "n": 2, "stream": True}))
        while not second.done():
            seen.append(server.load.requests)
            await asyncio.sleep(0)
        assert second.result().status_code == 503
        assert set(seen) == {1}
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        held_answers.go_on.set()

    asyncio.run(both())
    assert eventually(lambda: server.load.requests == 0)


def test_a_request_that_waits_is_refused_once_its_time_is_over(
    server: ChatHandler, held_answers: HeldAnswers
) -> None:
    async def both() -> None:
        first = asyncio.create_task(asked({**ASK, "max_tokens": 4000, "ignore_eos": True}))
        while not server.load.requests:
            await asyncio.sleep(0.01)
        late = {"x-request-timeout-seconds": "0.05"}
        second = await asked({**ASK, "max_tokens": 9}, **late)
        assert second.status_code == 504
        assert not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        held_answers.go_on.set()

    asyncio.run(both())
    assert eventually(lambda: server.load.requests == 0)


def test_a_schema_is_compiled_once_for_all_answers(server: ChatHandler) -> None:
    body = schema_of({"enum": ["a film", "no film"]})
    known = server.generator.vocabulary.grammar.cache_info().misses
    for _ in range(2):
        answer = asyncio.run(asked({**body, "n": 4, "temperature": 1})).json()
        texts = {choice["message"]["content"] for choice in answer["choices"]}
        assert texts <= {'"a film"', '"no film"'}
    assert server.generator.vocabulary.grammar.cache_info().misses == known + 1


def nested(depth: int) -> dict[str, Any]:
    """A schema of lists in lists."""
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"items": found}
    return found


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (nested(100), "nested more than 64 deep"),
        (nested(800), "nested more than 64 deep"),
        ({"const": "\ud800"}, "surrogate"),
        ({"const": float("nan")}, "a number that is none"),
        ({"enum": [f"film {number}" for number in range(MAX_GRAMMAR // 8)]}, "the limit is"),
    ],
    ids=["deep", "deeper", "half a pair", "no number", "long"],
)
def test_a_schema_that_costs_too_much_is_refused(
    schema: Any, said: str, server: ChatHandler
) -> None:
    answer = asyncio.run(asked(schema_of(schema)))
    assert answer.status_code == 422
    assert said in answer.json()["error"]["message"]
    function = {"name": "own", "parameters": schema}
    tools = {**ASK, "tools": [{"type": "function", "function": function}]}
    own = server.generator.tokenizer
    server.generator.tokenizer = tokenizer_of(TAGGED)
    try:
        answer = asyncio.run(asked({**tools, "tool_choice": "required"}))
    finally:
        server.generator.tokenizer = own
    assert answer.status_code == 422


@pytest.mark.parametrize("arguments", ["[" * 5000, "[" * 900 + "]" * 900, '{"a": "\\ud800"}'])
def test_arguments_of_calls_that_nobody_can_read_are_refused(
    arguments: str, server: ChatHandler
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "own", "arguments": arguments}}
    said = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}]
    said.append({"role": "tool", "content": "x", "tool_call_id": "a"})
    own = server.generator.tokenizer
    server.generator.tokenizer = tokenizer_of(TAGGED)
    try:
        answer = asyncio.run(asked({**ASK, "messages": said, "max_tokens": 2}))
    finally:
        server.generator.tokenizer = own
    assert answer.status_code in (200, 422), answer.text


def test_a_seed_changes_no_later_answer(server: ChatHandler) -> None:
    def after(seed: int) -> str:
        asyncio.run(asked({**ASK, "max_tokens": 2, "temperature": 1, "seed": seed}))
        body = {**ASK, "max_tokens": 30, "temperature": 2}
        return str(asyncio.run(asked(body)).json()["choices"][0]["message"]["content"])

    assert after(3) != after(3)


def test_others_go_on_while_a_long_prompt_is_read(
    server: ChatHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, tokenizer = threading.Event(), threading.Event(), server.generator.tokenizer

    class Held:
        """A tokenizer whose texts wait for the event loop."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            begun.set()
            go_on.wait(60)
            return tokenizer(*arguments, **options)

    monkeypatch.setattr(server.generator, "tokenizer", Held())

    async def turns(body: Any, path: str) -> int:
        """How often the event loop turns while a request's text is read."""
        count, reading = 0, asyncio.create_task(asked(body, path))
        begun.clear()
        go_on.clear()
        while not reading.done():
            await asyncio.sleep(0.001)
            count += begun.is_set() and not go_on.is_set()
            if count > 20:
                go_on.set()
        assert reading.result().json()["error"]["code"] == "too_long"
        return count

    text = "a film " * 9000
    said = [{"role": "user", "content": text}] * 8
    assert asyncio.run(turns({"messages": said}, CHAT)) > 20
    assert asyncio.run(turns({"prompt": [text] * 8}, COMPLETIONS)) > 20


def test_an_answer_that_fails_in_its_stream_ends_it_with_an_error(
    server: ChatHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose status was sent long ago."""

    def failing(self: Writer, *arguments: Any, **options: Any) -> None:
        if len(self.ids) == 3:
            raise RuntimeError("a secret of the replica")
        put(self, *arguments, **options)

    put = Writer.put
    body = {**ASK, "max_tokens": 20, "ignore_eos": True, "stream": True}
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "put", failing)
        answer = asyncio.run(asked(body))
    *_, last = [
        json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data")
    ]
    assert answer.status_code == 200
    assert last["error"]["code"] == "internal"
    assert last["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    assert "[DONE]" not in answer.text
    assert asyncio.run(asked(body)).text.endswith("data: [DONE]\n\n")
    assert server.load.requests == 0


def test_a_client_that_leaves_while_it_reads_nothing_frees_its_place(
    server: ChatHandler, held_answers: HeldAnswers
) -> None:
    """The server waits in `send`, where no iterator of the answer learns that the client left."""
    body = json.dumps({**ASK, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
    headers = [(b"content-type", b"application/json"), (b"host", b"test")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def leave() -> int:
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        is_full = asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await is_full.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                is_full.set()
                await asyncio.Event().wait()

        await app.guarded(routes.api)(scope, receive, send)
        return server.load.requests

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(leave(), 60))
        held_answers.go_on.set()
        assert eventually(lambda: server.load.requests == 0)
        assert held_answers.tokens < 100
    finally:
        gc.enable()
