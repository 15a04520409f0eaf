"""Calls of OpenAI's own package over HTTP, and requests that other clients are known to send."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from serve.config import ReplicaConfig
from serve.http import app
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.registry import endpoint_of
from serve.tools import load_generator
from serve.version import ModelVersion
from tests.serve.live import on_socket
from tests.serve.test_tools import OFFERED, TAGGED, WEATHER, tokenizer_of

QUESTION: Any = [{"role": "user", "content": "Is a superb film good?"}]
RECORDED_FILE = Path(__file__).parent / "recorded_requests.json"
RECORDED = [
    each for each in json.loads(RECORDED_FILE.read_text()) if each["path"] != "/v1/embeddings"
]


class Person(pydantic.BaseModel):
    """What an answer must be."""

    name: str = pydantic.Field(max_length=6)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture(scope="module")
def server(published: ModelVersion) -> Iterator[ChatHandler]:
    """The handler of the tiny language model, with a template that knows tools."""
    made = endpoint_of("causal-lm").load(ReplicaConfig(replace(published, max_length=4000)))
    assert isinstance(made, ChatHandler)
    made.generator.tokenizer = tokenizer_of(TAGGED)
    yield made
    made.generator.close()


@pytest.fixture(scope="module")
def client(server: ChatHandler) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the endpoint."""
    from serve.tasks.causal_lm import routes

    app.install(server)
    with on_socket(app.guarded(routes.api)) as url:
        made = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)
        with made:
            yield made
    app._current.clear()


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    usual: dict[str, Any] = {"model": "reviews", "messages": QUESTION, "max_tokens": 12, "seed": 3}
    return client.chat.completions.create(**{**usual, **fields})


def test_models_are_listed(client: openai.OpenAI, published: ModelVersion) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (published.name, "model") == ("reviews", "model")


def test_answers_streams_and_usage(client: openai.OpenAI) -> None:
    answer = chat(client)
    (choice,) = answer.choices
    assert choice.finish_reason in ("stop", "length")
    assert (choice.logprobs, choice.message.tool_calls) == (None, None)
    pieces = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert {piece.id for piece in pieces} != {answer.id}
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces[:-1])
    assert text == choice.message.content
    assert pieces[-1].usage == answer.usage
    assert (pieces[-1].choices, pieces[-2].choices[0].finish_reason) == ([], choice.finish_reason)
    with client.chat.completions.stream(model="reviews", messages=QUESTION, seed=3) as stream:
        stream.until_done()
        told = stream.get_final_completion().choices[0].message.content
    assert told == chat(client, max_tokens=None).choices[0].message.content


def test_several_answers_with_log_probabilities(client: openai.OpenAI) -> None:
    answer = chat(client, n=3, logprobs=True, top_logprobs=2, temperature=1.2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        scored = choice.logprobs.content
        assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in scored)
        told = b"".join(bytes(each.bytes) for each in scored).decode(errors="replace")
        assert told.startswith(choice.message.content)


def test_answers_are_parsed(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="reviews", messages=QUESTION, seed=seed, response_format=Person, max_tokens=400
        )
        (choice,) = answer.choices
        assert isinstance(choice.message.parsed, Person)
        assert choice.message.parsed == Person.model_validate_json(choice.message.content or "")


def test_tools_are_called_and_their_answers_read(client: openai.OpenAI) -> None:
    answer = chat(client, tools=OFFERED, tool_choice="required", max_tokens=900)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    messages: list[Any] = [*QUESTION, choice.message]
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        if call.function.name == "weather":
            assert set(arguments) == set(WEATHER["required"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assert chat(client, messages=messages, tools=OFFERED, max_tokens=4).choices


def test_texts_are_continued(client: openai.OpenAI, server: ChatHandler) -> None:
    fields: dict[str, Any] = {"model": "reviews", "max_tokens": 5, "temperature": 0}
    prompts = ["a superb film", "No, it is"]
    both = client.completions.create(prompt=prompts, n=2, logprobs=1, **fields)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = [client.completions.create(prompt=prompt, **fields) for prompt in prompts]
    texts = [each.choices[0].text for each in alone]
    assert [choice.text for choice in both.choices] == [texts[0], texts[0], texts[1], texts[1]]
    ids = [server.prompts.raw(prompt) for prompt in prompts]
    tokens = client.completions.create(prompt=ids, **fields)
    assert [choice.text for choice in tokens.choices] == texts
    pieces = list(client.completions.create(prompt=prompts, stream=True, **fields))
    found = ["", ""]
    for piece in pieces:
        for choice in piece.choices:
            found[choice.index] += choice.text
    assert found == texts


def test_errors_are_the_package_s_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, model="gpt-4o")
    assert missing.value.param == "model"
    with pytest.raises(openai.UnprocessableEntityError) as wrong:
        chat(client, temperature=3)
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.UnprocessableEntityError, match="modalities"):
        chat(client, modalities=["audio"])
    with pytest.raises(openai.UnprocessableEntityError, match="tokens 0 to 299"):
        client.completions.create(model="reviews", prompt=[5, 300])


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=lambda r: f"{r['client'].split()[0]} {r['call']}"
)
def test_requests_of_other_clients_are_answered(recorded: Any, client: openai.OpenAI) -> None:
    if "embeddings" in recorded["path"]:
        pytest.skip("an embedding model's endpoint answers it: tests/tasks")
    body = {**recorded["body"], "model": "reviews", "seed": 1}
    body.setdefault("max_tokens", 400)
    url = str(client.base_url).removesuffix("/v1/")
    answer = asyncio.run(posted(f"{url}{recorded['path']}", body))
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        return
    choices = answer.json()["choices"]
    assert len(choices) == body.get("n", 1)
    schema = body.get("response_format", {}).get("json_schema")
    for choice in choices:
        if schema and choice["finish_reason"] == "stop":
            assert set(json.loads(choice["message"]["content"])) == {"name", "age"}


def test_a_load_test_times_tokens(client: openai.OpenAI) -> None:
    url = str(client.base_url).removesuffix("/v1/")
    plan = load_generator.Plan(url, 1.5, concurrency=3, answer_tokens=12)
    result = asyncio.run(load_generator.run(plan, load_generator.sentences()))
    assert result.requests > 3
    assert result.failed == 0
    assert result.tokens_per_s * result.seconds == pytest.approx(12 * result.requests, rel=0.6)
    assert 0 < result.first_token_ms["p50"] <= result.latency_ms["p50"]
    assert 0 < result.token_ms["p50"] < result.latency_ms["p50"]


async def posted(url: str, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(url, json=body)
