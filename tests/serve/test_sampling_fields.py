"""Fields of requests that change how a language model selects tokens, and what it tells of them."""

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest
import torch
import transformers

from serve.config import ReplicaConfig
from serve.http import app
from serve.tasks.causal_lm.answer import Settings
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.sampling import Sampler
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Is a superb film good?"}], "temperature": 0}
CPU, PROMPT = torch.device("cpu"), [1, 5, 6, 7]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["critic", "viewer"]},
        "films": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "films"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["together", "one by one"])
def server(published: ModelVersion, request: pytest.FixtureRequest) -> Iterator[ChatHandler]:
    """The handler of the tiny language model with long answers, in both ways of writing them."""
    from serve.engines.generating import choice

    long = ReplicaConfig(replace(published, max_length=2000))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "one by one":
            patch.setattr(choice, "reason_for_one_by_one", lambda _: "as a test asks")
        made = endpoint_of("causal-lm").load(long)
        assert isinstance(made, ChatHandler)
        list(asyncio.run(first_pieces(made)))  # the thread has chosen its way
    yield made
    made.generator.close()


async def first_pieces(made: ChatHandler) -> list[Any]:
    """The pieces of a short answer."""
    settings = Settings(most_tokens=1, temperature=0)
    return [piece async for piece in made.generator.write(PROMPT, settings, 60)]


@pytest.fixture
def client(server: ChatHandler) -> Iterator[httpx.AsyncClient]:
    """A client of the application in this process."""
    from serve.tasks.causal_lm import routes

    app.install(server)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    yield httpx.AsyncClient(transport=transport, base_url="http://test")
    app._current.clear()


def post(client: httpx.AsyncClient, path: str = CHAT, **fields: Any) -> Any:
    """The body of an answer."""
    body = {"prompt": "a superb", "temperature": 0} if path == COMPLETIONS else ASK
    answer = asyncio.run(client.post(path, json={**body, **fields}, timeout=60))
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.AsyncClient, path: str = CHAT, **fields: Any) -> list[Any]:
    """The events of a streamed answer."""

    async def read() -> list[Any]:
        body = {"prompt": "a superb", "temperature": 0} if path == COMPLETIONS else ASK
        asked = client.stream("POST", path, json={**body, **fields, "stream": True}, timeout=60)
        async with asked as answer:
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    return asyncio.run(read())


def text_of(answer: Any) -> str:
    (choice,) = answer["choices"]
    return str(choice["message"]["content"])


def test_a_bias_forces_and_forbids_tokens(client: httpx.AsyncClient, server: ChatHandler) -> None:
    def tokens(bias: dict[str, float]) -> list[str]:
        answer = post(client, max_tokens=4, logit_bias=bias, logprobs=True)
        return [each["token"] for each in answer["choices"][0]["logprobs"]["content"]]

    wanted = server.generator.vocabulary.text_of(40)
    assert tokens({"40": 100}) == [wanted] * 4 != tokens({})
    first, *_ = tokens({})
    number = next(n for n in range(300) if server.generator.vocabulary.text_of(n) == first)
    assert first not in tokens({str(number): -100})


def test_penalties_count_what_the_answer_has() -> None:
    logits = torch.tensor([0.0, 2.0, 1.9, -5.0])
    config = transformers.GenerationConfig()

    def selected(answer: list[int], **fields: float) -> int:
        settings = Settings(most_tokens=9, temperature=0, **fields)
        return Sampler(settings, config, CPU).select(logits, ([2, 2, 2], answer))

    assert selected([]) == selected([1, 1], frequency_penalty=0.0) == 1
    assert selected([1], frequency_penalty=0.05) == 1
    assert selected([1, 1, 1], frequency_penalty=0.05) == 2  # three times
    assert selected([1, 1, 1], presence_penalty=0.05) == 1  # once
    assert selected([1], presence_penalty=0.2) == 2  # the prompt does not count
    assert selected([1], repetition_penalty=1.5) == 1  # for a repetition it does: 2/1.5, 1.9/1.5
    assert selected([], repetition_penalty=1.5) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, range(12)),
        ({"top_k": 3}, range(3)),
        ({"top_k": 0}, range(12)),
        ({"min_p": math.exp(-0.5)}, range(3)),  # neighbours differ by 2/11 in their logits
        ({"top_p": 0.01}, range(1)),
        ({"min_tokens": 1}, range(1, 12)),
    ],
)
def test_tokens_are_drawn_among_the_likely_ones(fields: dict[str, Any], expected: range) -> None:
    """The first one ends the answer."""
    logits, config = torch.linspace(1.0, -1.0, 12), transformers.GenerationConfig()
    sampler = Sampler(Settings(most_tokens=9, seed=0, **fields), config, CPU, ends=(0,))
    assert {sampler.select(logits, ([1], [])) for _ in range(400)} == set(expected)


def test_an_answer_does_not_end_before_its_fewest_tokens(client: httpx.AsyncClient) -> None:
    bias = {"2": 100}  # the end token
    assert post(client, logit_bias=bias)["usage"]["completion_tokens"] == 1
    found = post(client, logit_bias=bias, min_tokens=7)
    assert found["usage"]["completion_tokens"] == 8
    assert found["choices"][0]["finish_reason"] == "stop"
    found = post(client, logit_bias=bias, ignore_eos=True, max_tokens=5)
    assert found["usage"]["completion_tokens"] == 5
    assert found["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_log_probabilities_are_the_model_s_own(
    client: httpx.AsyncClient, server: ChatHandler, path: str
) -> None:
    """Whatever temperature and penalties do to the choice."""
    wish: dict[str, Any] = {"logprobs": 4}
    if path == CHAT:
        wish = {"logprobs": True, "top_logprobs": 4}
    fields = {**wish, "temperature": 1.3, "seed": 5, "max_tokens": 9, "frequency_penalty": 0.4}
    answer = post(client, path, **fields)
    (choice,) = answer["choices"]
    scored = scored_of(choice, path)
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    told = b"".join(bytes(each["bytes"]) for each in scored).decode(errors="replace")
    assert told.rstrip("\ufffd") == text  # the last character is cut
    assert len(text) > 4
    vocabulary = server.generator.vocabulary
    numbers = {vocabulary.bytes_of(n): n for n in range(300)}
    ids = [numbers[bytes(each["bytes"])] for each in scored]
    asked = prompt_of(server, path)
    prompt = len(asked)
    assert answer["usage"]["prompt_tokens"] == prompt
    with torch.inference_mode():
        logits = server.generator._model(torch.tensor([[*asked, *ids]])).logits[0, prompt - 1 : -1]
    known = logits.log_softmax(dim=1)
    for each, token, row in zip(scored, ids, known, strict=True):
        assert each["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        values = sorted(row.tolist(), reverse=True)[:4]
        assert [like["logprob"] for like in each["top_logprobs"]] == pytest.approx(values, abs=1e-4)
    pieces = [e["choices"][0] for e in events(client, path, **fields) if e["choices"]]
    streamed = [
        each for piece in pieces if piece.get("logprobs") for each in scored_of(piece, path)
    ]
    assert [each["logprob"] for each in streamed] == [each["logprob"] for each in scored]


def prompt_of(server: ChatHandler, path: str) -> list[int]:
    """The tokens that the model reads."""
    tokenizer = server.generator.tokenizer
    text, is_chat = "a superb", path == CHAT
    if is_chat:
        messages = ASK["messages"]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=not is_chat)["input_ids"]
    return ids


def bytes_of(token: str) -> bytes:
    """The bytes of a token of a completion."""
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


def scored_of(choice: Any, path: str) -> list[Any]:
    """The scored tokens of a choice in the form of chats."""
    found = choice["logprobs"]
    if path == CHAT:
        return list(found["content"])
    return [
        {
            "token": token,
            "logprob": logprob,
            "bytes": bytes_of(token),
            "top_logprobs": [{"token": t, "logprob": p} for t, p in likeliest.items()],
        }
        for token, logprob, likeliest in zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        )
    ]


def test_a_stop_text_takes_its_tokens_along(client: httpx.AsyncClient) -> None:
    fields = {"logprobs": True, "max_tokens": 20}
    whole = text_of(post(client, **fields))
    stop = whole[len(whole) // 2 :][:2]
    (choice,) = post(client, **fields, stop=stop)["choices"]
    said = whole[: whole.index(stop)]
    assert choice["message"]["content"] == said
    told = b"".join(bytes(each["bytes"]) for each in choice["logprobs"]["content"]).decode()
    assert told.startswith(said)
    assert not told.removeprefix(said).startswith(stop + whole[whole.index(stop) + 2 :][:1])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_several_answers_are_written_at_once(client: httpx.AsyncClient, path: str) -> None:
    fields = {"n": 3, "temperature": 1.4, "seed": 11, "max_tokens": 9}
    answer = post(client, path, **fields)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]

    def words(choice: Any) -> str:
        return str(choice["text"] if path == COMPLETIONS else choice["message"]["content"])

    texts = [words(choice) for choice in answer["choices"]]
    assert len(set(texts)) > 1
    alone = [post(client, path, **{**fields, "n": 1, "seed": 11 + k}) for k in range(3)]
    assert [words(each["choices"][0]) for each in alone] == texts
    written = sum(each["usage"]["completion_tokens"] for each in alone)
    assert answer["usage"]["completion_tokens"] == written
    assert answer["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    found = ["", "", ""]
    ends = [0, 0, 0]
    for event in events(client, path, **fields, stream_options={"include_usage": True}):
        for choice in event["choices"]:
            piece = choice["text"] if path == COMPLETIONS else choice["delta"].get("content")
            found[choice["index"]] += piece or ""
            ends[choice["index"]] += choice["finish_reason"] is not None
    assert (found, ends) == (texts, [1, 1, 1])
    assert event["usage"] == answer["usage"]


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_keeps_to_its_schema(client: httpx.AsyncClient, seed: int) -> None:
    """A model that has seen no JSON writes some at any temperature."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    fields = {"response_format": form, "temperature": 1.5, "seed": seed, "max_tokens": 900}
    answer = post(client, **fields)
    assert answer["choices"][0]["finish_reason"] == "stop"
    jsonschema.validate(json.loads(text_of(answer)), PERSON)
    streamed = "".join(
        choice["delta"].get("content") or ""
        for event in events(client, **fields)
        for choice in event["choices"]
    )
    assert streamed == text_of(answer)


def test_any_object_is_json_until_its_tokens_run_out(client: httpx.AsyncClient) -> None:
    form = {"type": "json_object"}
    for seed in range(4):
        answer = post(client, response_format=form, temperature=1.2, seed=seed, max_tokens=60)
        (choice,) = answer["choices"]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_constrained_and_free_answers_share_a_batch(client: httpx.AsyncClient) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    bodies = [{"max_tokens": 30}, {"response_format": form, "temperature": 1, "seed": 1}] * 3

    async def all_at_once() -> list[Any]:
        asked = (client.post(CHAT, json={**ASK, **body}, timeout=60) for body in bodies)
        return [answer.json() for answer in await asyncio.gather(*asked)]

    found = [text_of(answer) for answer in asyncio.run(all_at_once())]
    assert found[::2] == [text_of(post(client, **bodies[0]))] * 3
    for text in found[1::2]:
        jsonschema.validate(json.loads(text), PERSON)


def test_times_of_tokens_are_metrics(client: httpx.AsyncClient, server: ChatHandler) -> None:
    def counted() -> dict[str, float]:
        return {
            name: value
            for name, value, _ in server.metrics.samples(server.load)
            if name.endswith("token_seconds_count")
        }

    before = counted()
    post(client, max_tokens=9, n=2, temperature=1)
    after = counted()
    kinds = ("time_to_first_token", "time_per_output_token")
    assert {f"winnow_serve_{kind}_seconds_count" for kind in kinds} == set(after)
    assert all(after[name] - before[name] == 2 for name in after)
