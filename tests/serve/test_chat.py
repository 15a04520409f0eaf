"""A language model's endpoint: complete answers, streams, limits, and disconnects."""

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from jobs.errors import DeployError
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.auth import digest
from serve.http.errors import HttpError
from serve.tasks.causal_lm import answer, post
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion
from tests.builders import eventually
from tests.serve.conftest import HeldAnswers
from tests.serve.live import on_socket, seen

ASK = {"messages": [{"role": "user", "content": "Is a superb film good?"}], "temperature": 0}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(published: ModelVersion) -> Iterator[ChatHandler]:
    """The handler of the tiny language model."""
    made = endpoint_of("causal-lm").load(ReplicaConfig(published))
    assert isinstance(made, ChatHandler)
    yield made
    made.generator.close()


@pytest.fixture
def client(server: ChatHandler) -> Iterator[httpx.AsyncClient]:
    """A client of the application in this process."""
    from serve.tasks.causal_lm import routes

    app.install(server)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    yield httpx.AsyncClient(transport=transport, base_url="http://test")
    app._current.clear()


def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """One answer."""
    return asyncio.run(client.post(PATH, json={**ASK, **fields}, timeout=60))


def stream(client: httpx.AsyncClient, **fields: Any) -> list[Any]:
    """Events of a streamed answer."""

    async def read() -> list[Any]:
        body = {**ASK, **fields, "stream": True}
        async with client.stream("POST", PATH, json=body, timeout=60) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    return asyncio.run(read())


def schema_of(schema: Any) -> dict[str, Any]:
    """A response_format."""
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def tool(name: str) -> dict[str, Any]:
    """A tool without arguments."""
    return {"type": "function", "function": {"name": name}}


def named(name: str) -> dict[str, Any]:
    """The choice of one tool."""
    return {"type": "function", "function": {"name": name}}


def test_a_conversation_is_answered_as_transformers_answers_it(
    client: httpx.AsyncClient, published: ModelVersion
) -> None:
    import transformers

    answer = ask(client, max_tokens=12).json()
    tokenizer = transformers.AutoTokenizer.from_pretrained(published.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(published.path)
    text = tokenizer.apply_chat_template(
        ASK["messages"], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    out = model.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=0)[0, ids.shape[1] :]
    expected = tokenizer.decode(out, skip_special_tokens=True)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected}
    assert choice["finish_reason"] == ("stop" if out[-1] == 2 else "length")
    used = {"prompt_tokens": ids.shape[1], "completion_tokens": len(out)}
    assert answer["usage"] == {**used, "total_tokens": sum(used.values())}
    assert (answer["object"], answer["model"]) == ("chat.completion", published.name)


@pytest.fixture
def _read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is read before the next token is written, so that no two of them are joined."""
    is_read, put, together = threading.Event(), answer.Writer.put, post.together
    is_read.set()

    def put_when_read(self: answer.Writer, *arguments: Any, **options: Any) -> None:
        assert is_read.wait(60)
        is_read.clear()
        sent = self._sent
        put(self, *arguments, **options)
        if self._sent == sent:
            is_read.set()

    def read(*arguments: Any) -> Any:
        found = together(*arguments)
        is_read.set()
        return found

    monkeypatch.setattr(answer.Writer, "put", put_when_read)
    monkeypatch.setattr(post, "together", read)


@pytest.mark.usefixtures("_read_at_once")
def test_a_stream_is_the_whole_answer_in_pieces(client: httpx.AsyncClient) -> None:
    whole = ask(client, max_tokens=16).json()
    events = stream(client, max_tokens=16, stream_options={"include_usage": True})
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert events[-1]["usage"] == whole["usage"]
    assert len(events) > 5
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(client: httpx.AsyncClient) -> None:
    whole = ask(client, max_tokens=20).json()["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:3]
    found = ask(client, max_tokens=20, stop=["never said", stop]).json()["choices"][0]
    assert found == {
        "index": 0,
        "message": {"role": "assistant", "content": whole[: whole.index(stop)]},
        "finish_reason": "stop",
    }
    events = stream(client, max_tokens=20, stop=stop)
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole[: whole.index(stop)]


def test_developers_and_parts_of_text_are_read(client: httpx.AsyncClient) -> None:
    rules = {"role": "system", "content": "Be brief."}
    asked = [rules, {"role": "user", "content": "a film?"}]
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "film?"}]
    same = [{**rules, "role": "developer"}, {"role": "user", "content": parts}]
    first, second = (ask(client, messages=each, tools=None).json() for each in (asked, same))
    assert first["usage"] == second["usage"]
    assert first["choices"] == second["choices"]


def test_a_seed_draws_the_same_words(client: httpx.AsyncClient) -> None:
    def words(seed: int) -> str:
        answer = ask(client, temperature=1.5, seed=seed, max_tokens=20).json()
        return str(answer["choices"][0]["message"]["content"])

    assert words(3) == words(3)
    assert len({words(seed) for seed in range(4)}) > 1


NULLS = ("temperature", "top_p", "n", "stop", "seed", "stream", "stream_options", "logprobs")


def test_what_clients_send_for_defaults_is_read(client: httpx.AsyncClient) -> None:
    """LangChain sends nulls, OpenAI's package an empty list of tools, others all defaults."""
    expected = ask(client, max_tokens=8).json()["choices"]
    nulls = dict.fromkeys((*NULLS[1:], "user", "response_format", "tool_choice", "logit_bias"))
    for fields in (
        nulls,
        {"top_p": 0, "temperature": 1.7},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "user": "me", "n": 1},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "logprobs": False},
        {"response_format": {"type": "text"}, "metadata": {}, "store": False, "top_k": -1},
    ):
        answer = ask(client, **{"max_tokens": 8, **fields})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == expected
    assert ask(client, temperature=None, seed=-3, max_tokens=2).status_code == 200


def test_an_answer_of_too_many_tokens_is_cut_and_not_refused(client: httpx.AsyncClient) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, **{field: 10**6})
        assert answer.status_code == 200
        assert answer.json()["usage"]["total_tokens"] <= 64


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, 422, "role"),
        ({"messages": [{"role": "user"}]}, 422, "content is missing"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, 422, "not the assistant"),
        ({"messages": [{"role": "user", "content": "film " * 200}]}, 422, "the limit is 1 to 63"),
        ({"model": "another"}, 404, "this endpoint serves"),
        ({"temperature": 9}, 422, "temperature"),
        ({"max_tokens": 0}, 422, "max_tokens"),
        ({"n": 17}, 422, "n: "),
        ({"best_of": 2}, 422, "best_of: "),
        ({"n": True}, 422, "n: "),
        ({"frequency_penalty": 3}, 422, "frequency_penalty: "),
        ({"presence_penalty": -2.5}, 422, "presence_penalty: "),
        ({"repetition_penalty": 0}, 422, "repetition_penalty: "),
        ({"logit_bias": {"5": -101}}, 422, "logit_bias"),
        ({"logit_bias": {"five": 1}}, 422, "logit_bias"),
        ({"logit_bias": {"300": 1}}, 422, "the model has the tokens 0 to 299"),
        ({"top_logprobs": 2}, 422, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 422, "top_logprobs: "),
        ({"guided_regex": "a+"}, 422, "guided_regex: "),
        ({"response_format": {"type": "xml"}}, 422, "response_format"),
        ({"response_format": {"type": "json_schema"}}, 422, "response_format"),
        ({"response_format": schema_of({"type": "nope"})}, 422, "Invalid type: nope"),
        ({"response_format": schema_of({"not": {}})}, 422, "not"),
        ({"tool_choice": "required"}, 422, "there are no tools"),
        ({"tool_choice": named("other"), "tools": [tool("own")]}, 422, "not among the tools"),
        ({"tools": [tool("own"), tool("own")]}, 422, "the same name"),
        ({"tools": [tool("own")]}, 422, "this model cannot call tools"),
        ({"reasoning_effort": "high"}, 422, "reasoning_effort: "),
        ({"modalities": ["text", "audio"]}, 422, "modalities: "),
        ({"stop": ["a"] * 9}, 422, "stop"),
        ({"tools": [{"type": "function"}]}, 422, "tools.0.function"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            422,
            "parts of text",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    fields: dict[str, Any], status: int, said: str, client: httpx.AsyncClient
) -> None:
    for is_streamed in (False, True):
        answer = ask(client, **fields, stream=is_streamed)
        assert answer.status_code == status
        assert said in answer.json()["error"]["message"]


def test_other_paths_are_those_of_a_language_model(
    client: httpx.AsyncClient, published: ModelVersion
) -> None:
    def get(path: str) -> httpx.Response:
        return asyncio.run(client.get(path))

    assert get("/v1/models").json()["data"][0]["id"] == published.name
    assert get("/health").json()["version"] == published.id
    assert asyncio.run(client.post("/predict", json={"inputs": "a"})).status_code == 404
    ask(client, max_tokens=4)
    text = get("/metrics").text
    assert 'winnow_serve_requests_total{path="/v1/chat/completions",status="200"}' in text
    assert "winnow_serve_answer_tokens_total" in text


def test_refusals_are_counted_too(client: httpx.AsyncClient, server: ChatHandler) -> None:
    """The alert of failed requests sees an overloaded language model."""

    def counted(status: str) -> float:
        return sum(
            value
            for name, value, labels in server.metrics.samples(server.load)
            if name == "winnow_serve_requests_total" and labels == {"path": PATH, "status": status}
        )

    before = [counted(status) for status in ("200", "422", "503", "504")]
    answered = sum(server.metrics.latency.counts)
    late = {"x-request-timeout-seconds": "0.000001"}

    async def all_at_once() -> list[int]:
        asked = (client.post(PATH, json={**ASK, "max_tokens": 40}, timeout=60) for _ in range(3))
        return sorted(answer.status_code for answer in await asyncio.gather(*asked))

    assert ask(client, max_tokens=0).status_code == 422
    assert asyncio.run(client.post(PATH, json=ASK, headers=late)).status_code == 504
    server.adjust({"queue_tokens": 1})
    try:
        assert asyncio.run(all_at_once()) == [200, 503, 503]
    finally:
        server.adjust({"queue_tokens": ReplicaConfig(server.config.version).queue_tokens})
    after = [counted(status) for status in ("200", "422", "503", "504")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 2, 1]
    assert sum(server.metrics.latency.counts) - answered == 1


def test_answers_wait_for_each_other_within_limits(published: ModelVersion) -> None:
    made = ChatHandler(ReplicaConfig(published, queue_tokens=100))
    settings = answer.Settings(most_tokens=40, temperature=0)

    async def ask_many() -> list[str]:
        async def one() -> str:
            try:
                return "".join(
                    [p.text async for p in made.generator.write([1, 5, 6], settings, 30)]
                )
            except Exception as error:  # noqa: BLE001 - compared below
                return type(error).__name__

        return await asyncio.gather(*(one() for _ in range(6)))

    answers = asyncio.run(ask_many())
    made.adjust({"queue_tokens": 1000})
    assert set(asyncio.run(ask_many())) == set(answers) - {"QueueFullError"}
    made.generator.close()
    assert answers.count("QueueFullError") == 4  # 43 tokens each
    assert len({text for text in answers if text != "QueueFullError"}) == 1
    assert made.load.requests == 0


def test_whoever_leaves_ends_the_writing(
    published: ModelVersion, held_answers: HeldAnswers
) -> None:
    made = ChatHandler(replace(ReplicaConfig(published)))
    made.generator._ends = frozenset()  # it never comes to an end
    settings = answer.Settings(most_tokens=4000, temperature=0)

    async def leave() -> None:
        pieces = made.generator.write([1, 5, 6], settings, 60)
        await anext(pieces)
        await pieces.aclose()

    asyncio.run(leave())
    held_answers.go_on.set()
    made.generator.close()
    assert held_answers.tokens < 100
    assert made.load.requests == 0


@contextlib.contextmanager
def connected(url: str, **fields: Any) -> Iterator[None]:
    """A connection on which a request was sent, whose answer nobody reads."""
    body = json.dumps({**ASK, **fields}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as talk:
        talk.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        yield


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_connection_that_is_cut_ends_the_writing(
    published: ModelVersion, held_answers: HeldAnswers, *, is_streamed: bool
) -> None:
    """A client disconnects from a real socket during a long answer."""
    from serve.tasks.causal_lm import routes

    long = replace(published, max_length=4096)
    made = ChatHandler(ReplicaConfig(long))
    made.generator._ends = frozenset()  # it never comes to an end
    app.install(made)
    try:
        with on_socket(app.guarded(routes.api)) as url:
            with connected(url, max_tokens=4000, stream=is_streamed):
                assert held_answers.begun.wait(60)
                assert made.load.requests == 1
                (job,) = made.generator._waiting
            assert job.is_cancelled.wait(60)
            held_answers.go_on.set()
            assert eventually(lambda: made.load.requests == 0)
            assert held_answers.tokens < 100
    finally:
        app._current.clear()
        made.generator.close()


@pytest.mark.parametrize("is_streamed", [True, False])
def test_requests_whose_clients_left_the_queue_do_not_fill_it(
    published: ModelVersion, held_answers: HeldAnswers, *, is_streamed: bool
) -> None:
    """A client disconnects before its turn, during a long answer to another one."""
    from serve.tasks.causal_lm import routes

    long = replace(published, max_length=4096)
    made = ChatHandler(ReplicaConfig(long, batch_rows=1, queue_tokens=9000))
    made.generator._ends = frozenset()  # it never comes to an end
    app.install(made)
    body = {**ASK, "max_tokens": 4000, "stream": True}
    try:
        with (
            on_socket(app.guarded(routes.api)) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            with client.stream("POST", PATH, json=body) as first:
                assert first.status_code == 200
                for _ in range(2):
                    with connected(url, max_tokens=4000, stream=is_streamed):
                        # queued, and not refused by a full queue
                        assert eventually(lambda: made.load.requests == 2)
                    assert eventually(lambda: made.load.requests == 1)
                held_answers.go_on.set()
                assert next(first.iter_bytes())  # the first answer goes on
            assert eventually(lambda: made.load.requests == 0)
        text = made.scrape().decode()
    finally:
        app._current.clear()
        made.generator.close()
    statuses = set(re.findall(rf'requests_total{{path="{PATH}",status="(\d+)"}}', text))
    assert statuses == {"200", "499"}


def test_time_that_is_over_ends_an_answer_or_refuses_it(client: httpx.AsyncClient) -> None:
    async def answers() -> list[httpx.Response]:
        """Requests with a timeout of 0, then with just enough for one token on a busy machine."""
        found: list[httpx.Response] = []
        for seconds in (0.000001, *(0.02 * 2**n for n in range(8))):
            headers = {"x-request-timeout-seconds": str(seconds)}
            found.append(await client.post(PATH, json={**ASK, "max_tokens": 45}, headers=headers))
            if found[-1].status_code == 200:
                break
        return found

    *late, cut = asyncio.run(answers())
    assert {answer.status_code for answer in late} == {504}
    assert cut.json()["choices"][0]["finish_reason"] in ("length", "stop")


def test_a_token_is_asked_for(published: ModelVersion) -> None:
    from serve.tasks.causal_lm import routes

    made = ChatHandler(ReplicaConfig(published, token_hashes=(digest("secret"),)))
    app.install(made)
    transport = httpx.ASGITransport(app.guarded(routes.api))
    try:
        client = httpx.AsyncClient(transport=transport, base_url="http://test")
        assert ask(client).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        answer = asyncio.run(client.post(PATH, json={**ASK, "max_tokens": 2}, headers=headers))
        assert answer.status_code == 200
    finally:
        app._current.clear()
        made.generator.close()


@pytest.mark.browser
def test_the_playground_streams_an_answer_in_a_real_browser(server: ChatHandler) -> None:
    from serve.tasks.causal_lm import routes

    app.install(server)
    with on_socket(app.guarded(routes.api)) as url:
        link = f"{url}/#text=Is a superb film good?&most=3"
        torch.manual_seed(0)  # some draws are three parts of characters, which have no text
        found = seen(link, until=" tokens in ")
    app._current.clear()
    assert '<div class="card turn user">Is a superb film good?</div>' in found
    answer = re.search(r'<div class="card turn assistant">([^<]+)</div>', found)
    assert answer, found[-3000:]
    assert re.search(r"[123] tokens in [\d.]+ s · version " + server.config.version.id, found)


def test_a_model_that_another_machine_published_is_read_from_where_it_is_kept(
    published: ModelVersion, tmp_path: Path
) -> None:
    made = endpoint_of("causal-lm").load(
        ReplicaConfig(replace(published, path=str(tmp_path / "not-here")))
    )
    assert isinstance(made, ChatHandler)
    made.generator.close()
    assert made.config.version == published


def test_a_context_is_longer_than_a_training_row_up_to_the_model_s_positions(
    published: ModelVersion,
) -> None:
    made = ChatHandler(ReplicaConfig(published, max_context=100))
    try:
        assert made.info.max_length == 100 > published.max_length
        assert len(made.prompts.within_limit([5] * 99, "messages", "conversation")) == 99
        with pytest.raises(HttpError, match="the limit is 1 to 99"):
            made.prompts.within_limit([5] * 100, "messages", "conversation")
        known = made.generator.positions
    finally:
        made.generator.close()
    with pytest.raises(DeployError, match=f"set it to {known} or less"):
        ChatHandler(ReplicaConfig(published, max_context=known + 1))


def test_errors_have_the_shape_of_openai_s(client: httpx.AsyncClient) -> None:
    """Clients read the type and the field."""
    cases = (
        ({"model": "gpt"}, 404, "invalid_request_error", "model"),
        ({"temperature": "hot"}, 422, "invalid_request_error", "temperature"),
        ({"n": 30}, 422, "invalid_request_error", "n"),
        ({"tools": [tool("own")]}, 422, "invalid_request_error", "tools"),
        ({"response_format": schema_of({"type": "a"})}, 422, None, "response_format"),
        ({"messages": [{"role": "user", "content": "a " * 200}]}, 422, None, "messages"),
    )
    for fields, status, kind, param in cases:
        answer = ask(client, **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, param), error
        assert error["type"] == (kind or "invalid_request_error")
    late = {"x-request-timeout-seconds": "0.000001"}
    answer = asyncio.run(client.post(PATH, json=ASK, headers=late))
    assert answer.json()["error"]["type"] == "server_error"
