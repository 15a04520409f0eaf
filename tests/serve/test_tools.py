"""Calls of tools in the form of each model's chat template."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest

from serve.config import ReplicaConfig
from serve.http import app
from serve.tasks.causal_lm import tool_format
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.tool_format import Call, CallReader, ToolFormat, UnknownFormatError
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion
from tests import tiny

TURNS = (
    "{%- for message in messages %}<s>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}CALL{%- endfor %}</s>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<s>assistant\n{%- endif %}"
)
TOOLS = "{%- if tools %}{%- for tool in tools %}{{ tool | tojson }}\n{%- endfor %}{%- endif %}"
NAMED = '{"name": {{ call.function.name | tojson }}, "arguments": ARGUMENTS}'
ARGUMENTS = "{{ call.function.arguments | tojson }}"
TAGGED = TOOLS + TURNS.replace(
    "CALL", "{% if not loop.first %}\n{% endif %}<tool_call>\n" + NAMED + "\n</tool_call>"
).replace("ARGUMENTS", ARGUMENTS)
LISTED = (
    TOOLS
    + "{%- for message in messages %}{{ message.role }}: {{ message.content }}"
    + "{%- if message.tool_calls %}<mask>["
    + "{%- for call in message.tool_calls %}"
    + '{"name": {{ call.function.name | tojson }}, "arguments": '
    + ARGUMENTS
    + ', "id": {{ call.id | tojson }}}'
    + "{%- if not loop.last %}, {% endif %}{%- endfor %}]{%- endif %}"
    + "{{ eos_token if message.role == 'assistant' else '\n' }}{%- endfor %}"
    + "{%- if add_generation_prompt %}assistant: {%- endif %}"
)
BARE = (
    TOOLS
    + "{%- for message in messages %}<s>{{ message.role }}\n"
    + "{%- if message.tool_calls %}"
    + "{%- if message.tool_calls | length > 1 %}{{ raise_exception('one call') }}{%- endif %}"
    + '{"name": "{{ message.tool_calls[0].function.name }}", "parameters": '
    + "{{ message.tool_calls[0].function.arguments | tojson }}}"
    + "{%- else %}{{ message.content }}{%- endif %}</s>{%- endfor %}"
    + "{%- if add_generation_prompt %}<s>assistant\n{%- endif %}"
)
NESTED = TOOLS + TURNS.replace("CALL", "{{ call | tojson }}")
TAGS = TOOLS + TURNS.replace("CALL", "<call={{ call.function.name }}>{{ call.function.arguments }}")
DEAF = TAGGED.removeprefix(TOOLS)
FORMS = {"tagged": TAGGED, "listed": LISTED, "bare": BARE, "nested": NESTED}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"enum": [1, 7]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMES = ("weather", "now")
OFFERED = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]


def tokenizer_of(template: str) -> Any:
    found = tiny.tokenizer()
    found.add_special_tokens({"additional_special_tokens": ["<mask>"]})
    found.chat_template = template
    return found


def form_of(name: str) -> ToolFormat:
    return tool_format.learned(tokenizer_of(FORMS[name]), ["</s>"])


def written(name: str, words: str, calls: list[tuple[str, Any]]) -> str:
    """An answer as the template writes it, without its end."""
    message: dict[str, Any] = {"role": "assistant", "content": words}
    message["tool_calls"] = [
        {"id": "abcdefgh1", "type": "function", "function": {"name": n, "arguments": a}}
        for n, a in calls
    ]
    tokenizer, question = tokenizer_of(FORMS[name]), {"role": "user", "content": "q"}
    whole = tokenizer.apply_chat_template([question, message], tokenize=False, tools=OFFERED)
    asked = tokenizer.apply_chat_template(
        [question], tokenize=False, add_generation_prompt=True, tools=OFFERED
    )
    return str(whole).removeprefix(asked).split("</s>")[0]


@pytest.mark.parametrize("name", FORMS)
def test_calls_are_read_as_the_template_writes_them(name: str) -> None:
    form = form_of(name)
    calls = [("weather", {"city": 'Rome, "Via"', "days": 7}), ("now", {})]
    several = [calls[:1], calls[1:], *([] if form.between is None else [calls, calls[::-1]])]
    assert (form.between is None) is (name == "bare")
    for each in several:
        answer = written(name, "", each)
        assert form.read(answer, NAMES) == ("", [Call(*call) for call in each])
        assert form.read(answer, ["other"]) == (answer, [])  # no such tool
        if form.mark:
            said = written(name, "Let me see.", each)
            words, found = form.read(said, NAMES)
            assert (words.strip(), found) == ("Let me see.", [Call(*call) for call in each])
        cut = answer[: answer.index(":") + 2]
        assert form.read(cut, NAMES) == (cut, [])
    for words in ("No call.", "", "a {b} c", '{"name": "weather"}', "[1, 2]"):
        assert form.read(words, NAMES) == (words, [])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_words_are_known_before_calls(name: str, size: int) -> None:
    form = form_of(name)
    answers = ["Only < words [ and <tool_cal signs.", "  two\n\nlines ", ""]
    answers.append(written(name, "", [("now", {})]))
    if form.mark:
        answers.append(written(name, "Let me see. ", [("weather", {"city": "a", "days": 1})]))
    for answer in answers:
        reader = CallReader(form, NAMES)
        pieces = [reader.feed(answer[at : at + size]) for at in range(0, len(answer), size)]
        rest, calls = reader.end()
        assert ("".join([*pieces, rest]), calls) == form.read(answer, NAMES)
        if size == 1 and not calls and answer:
            assert any(pieces)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (TAGS, "writes no calls of tools as JSON"),
        (DEAF, "knows no tools"),
        ("{{ raise_exception('no') }}", "refuses a conversation"),
    ],
)
def test_a_template_without_calls_of_json_is_refused(template: str, said: str) -> None:
    with pytest.raises(UnknownFormatError, match=said):
        tool_format.learned(tokenizer_of(template), ["</s>"])


@pytest.fixture(scope="module", params=FORMS)
def server(published: ModelVersion, request: pytest.FixtureRequest) -> Iterator[ChatHandler]:
    """The handler of the tiny language model with a template that knows tools."""
    made = endpoint_of("causal-lm").load(ReplicaConfig(replace(published, max_length=4000)))
    assert isinstance(made, ChatHandler)
    made.generator.tokenizer = tokenizer_of(FORMS[request.param])
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


def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    question = [{"role": "user", "content": "What is the weather?"}]
    body = {"messages": question, "tools": OFFERED, "temperature": 1, "max_tokens": 600, **fields}
    return asyncio.run(client.post("/v1/chat/completions", json=body, timeout=120))


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_model_that_must_call_a_tool_calls_one(
    client: httpx.AsyncClient, seed: int, choice: Any
) -> None:
    """A model that was never taught to: the grammar holds it to the template's form."""
    fields = {"tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
    answer = post(client, **fields)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["choices"]
    assert found["finish_reason"] == "tool_calls", found
    message = found["message"]
    ((name, arguments),) = calls_of(message)
    assert message["content"] is None
    if name == "weather":
        jsonschema.validate(arguments, WEATHER)
    assert name in (NAMES if choice == "required" else ("weather",))
    events = [
        json.loads(line.removeprefix("data: "))
        for line in post(client, **fields, stream=True).text.split("\n\n")
        if line.startswith("data: {")
    ]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    called = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls_of({"tool_calls": called}) == [(name, arguments)]
    assert [call["index"] for call in called] == [0]
    assert "".join(delta.get("content", "") for delta in deltas) == ""
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_model_that_may_call_a_tool_says_what_it_likes(
    client: httpx.AsyncClient, server: ChatHandler
) -> None:
    answer = post(client, max_tokens=12, temperature=0).json()
    prompt = answer["usage"]["prompt_tokens"]
    (found,) = answer["choices"]
    assert found["message"]["content"]
    assert "tool_calls" not in found["message"]
    assert found["finish_reason"] in ("stop", "length")
    without = post(client, max_tokens=12, temperature=0, tool_choice="none").json()
    assert without["usage"]["prompt_tokens"] < prompt - 100  # it does not read of tools


def test_what_a_tool_answers_is_read(client: httpx.AsyncClient) -> None:
    function = {"name": "weather", "arguments": '{"city": "Rome", "days": 1}'}
    call = {"id": "abcdefgh1", "type": "function", "function": function}
    turns = [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": "sunny"},
    ]
    answer = post(client, messages=turns, max_tokens=4)
    assert answer.status_code == 200, answer.text
    longer = post(
        client, messages=[*turns[:2], {**turns[2], "content": "sunny " * 9}], max_tokens=4
    )
    used, more = (each.json()["usage"]["prompt_tokens"] for each in (answer, longer))
    assert more > used
