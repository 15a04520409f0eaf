"""Predictions from Python: what an endpoint is asked, what comes back, and errors in our words."""

import socket
from collections.abc import Iterator

import pytest
import torch
import transformers

import orchestrator as winnow
from jobs.errors import DeployError, RequestError
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.auth import digest
from serve.tasks.answers import Answer, Label
from serve.tasks.registry import endpoint_of
from serve.tools.client import predict
from serve.version import ModelVersion
from tests.builders import free_port
from tests.serve.live import on_socket

TEXTS = [f"a {word} film" for word in ("superb", "dull", "fresh", "awful")]
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def url(version: ModelVersion) -> Iterator[str]:
    """Of the tiny classifier on a real socket, which asks for a token."""
    endpoint = endpoint_of("text-classification")
    config = ReplicaConfig(version, engine="torch-fp32", token_hashes=(digest(TOKEN),))
    app.install(endpoint.load(config))
    with on_socket(app.guarded(endpoint.application())) as url:
        yield url
    app._current.clear()


def expected(version: ModelVersion, texts: list[str]) -> list[list[float]]:
    """Probabilities as transformers computes them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(version.path)
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found: list[list[float]] = model(**encoded).logits.softmax(-1).tolist()
    return found


def test_texts_of_several_requests_get_the_labels_of_transformers_in_their_order(
    url: str, version: ModelVersion
) -> None:
    texts = TEXTS * 20
    found = predict(url, texts, {}, token=TOKEN)
    rows = expected(version, TEXTS) * 20
    assert [each.label for each in found if isinstance(each, Label)] == [
        version.labels[row.index(max(row))] for row in rows
    ]
    scores = [each.score for each in found if isinstance(each, Label)]
    assert scores == pytest.approx([max(row) for row in rows], abs=1e-4)


def test_one_text_gets_one_label_and_with_top_k_all_labels_with_the_best_first(
    url: str, version: ModelVersion
) -> None:
    (one,) = predict(f"{url}/", TEXTS[:1], {}, token=TOKEN)
    (every,) = predict(url, TEXTS[:1], {"top_k": 2}, token=TOKEN)
    assert isinstance(every, tuple)
    assert every[0] == one
    assert {each.label for each in every} == set(version.labels)
    assert sum(each.score for each in every) == pytest.approx(1, abs=1e-4)
    assert predict(url, [], {}, token=TOKEN) == []


def test_one_input_gives_one_value_and_a_list_a_list(url: str, version: ModelVersion) -> None:
    endpoint = winnow.Endpoint(version.name, url, version.id)
    one = winnow.predict(endpoint, TEXTS[0], token=TOKEN)
    assert isinstance(one, winnow.Label)
    assert winnow.predict(endpoint, [TEXTS[0]], token=TOKEN) == [one]
    every = winnow.predict(url, TEXTS[0], token=TOKEN, top_k=2)
    assert isinstance(every, tuple)
    assert every[0] == one


def test_what_the_endpoint_refuses_is_told_in_its_words(url: str) -> None:
    with pytest.raises(RequestError, match=r"/predict refused the request with 401: .*token"):
        predict(url, ["a film"], {})
    with pytest.raises(RequestError, match=r"422: inputs\[0\] must be a string for this model"):
        predict(url, [("a film", "another")], {}, token=TOKEN)
    with pytest.raises(RequestError, match=r"422: .*top_k"):
        predict(url, ["a film"], {"top_k": 0}, token=TOKEN)
    with pytest.raises(RequestError, match=r"inputs cannot be sent as JSON: .*set"):
        predict(url, [{"text": {"a film"}}], {}, token=TOKEN)


def test_a_url_where_nothing_or_something_else_answers_is_told(url: str) -> None:
    with pytest.raises(DeployError, match=r"cannot be reached: .*winnow status"):
        predict(f"http://127.0.0.1:{free_port()}/reviews", ["a film"], {})
    with pytest.raises(DeployError, match="cannot be reached"):
        predict("reviews", ["a film"], {})
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DeployError, match=r"gave no answer within 0\.1 s"),
    ):
        predict(f"http://127.0.0.1:{silent.getsockname()[1]}/x", ["a film"], {}, timeout_s=0.1)


def test_a_page_of_another_server_is_no_endpoint() -> None:
    async def page(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b"<html>"})  # type: ignore[operator]

    with (
        on_socket(page) as other,
        pytest.raises(DeployError, match="does not answer as an endpoint of Winnow"),
    ):
        predict(other, ["a film"], {})


def test_a_language_model_answers_a_text_and_a_conversation_alike(published: ModelVersion) -> None:
    endpoint = endpoint_of("causal-lm")
    handler = endpoint.load(ReplicaConfig(published))
    app.install(handler)
    asked = "Is a superb film good?"
    turns = {"messages": [{"role": "user", "content": asked}]}
    options = {"max_tokens": 4, "temperature": 0}
    try:
        with on_socket(app.guarded(endpoint.application())) as url:
            found = predict(url, [asked, turns], options)
    finally:
        app._current.clear()
        handler.generator.close()  # type: ignore[attr-defined]  # handlers of language models have one
    first, second = found
    assert isinstance(first, Answer)
    assert first == second
    assert first.text
    assert first.finish_reason in ("stop", "length")
