"""Requests made up from the document of a classifier of tokens: never an error of its own."""

from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st

from serve.config import ReplicaConfig
from serve.http import app
from serve.http.asgi import MAX_BODY_BYTES
from serve.http.fast_path import connections
from serve.tasks.token_classification import routes
from serve.tasks.token_classification.handler import load
from serve.version import ModelVersion
from tests.serve.live import on_socket

pytestmark = pytest.mark.filterwarnings("ignore")
document: dict[str, Any] = routes.api.openapi()
schema = schemathesis.openapi.from_dict(document)
ALLOWED = {503, 504}
EXAMPLES = hypothesis.settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def url(entity_version: ModelVersion) -> Iterator[str]:
    server = load(ReplicaConfig(entity_version, engine="torch-fp32", timeout_s=11))
    app.install(server)
    try:
        with on_socket(app.guarded(routes.api), connections(app.current_handler)) as found:
            yield found
    finally:
        app._current.clear()
        server.client.close()


@schema.parametrize()
@EXAMPLES
def test_made_up_requests_fail_in_no_way_of_the_server(
    case: schemathesis.Case[Any], url: str
) -> None:
    answer = case.call(base_url=url)
    assert answer.status_code < 500 or answer.status_code in ALLOWED, answer.text


@hypothesis.given(texts=st.lists(st.text(max_size=300), min_size=1, max_size=4))
@EXAMPLES
def test_spans_are_those_of_the_text_for_any_unicode(texts: list[str], url: str) -> None:
    answer = httpx.post(f"{url}/predict", json={"inputs": texts}, timeout=30)
    assert answer.status_code == 200, answer.text
    for text, row in zip(texts, answer.json(), strict=True):
        last = 0
        for entity in row["entities"]:
            assert last <= entity["start"] < entity["end"] <= len(text)
            assert text[entity["start"] : entity["end"]] == entity["text"]
            last = entity["end"]


ODD = ("Ada in Rome ", "x", "a ", "🎬", "\n")


@pytest.mark.parametrize("part", ODD)
def test_the_longest_text_is_answered(part: str, url: str) -> None:
    text = (part * 100_000)[:100_000]
    answer = httpx.post(f"{url}/predict", json={"inputs": text}, timeout=60)
    assert answer.status_code in (200, 504), answer.text
    assert len(text) == 100_000


@pytest.mark.parametrize(("part", "length"), [("Ada in Rome ", 100_000), ("x ", 1_000)])
def test_the_largest_body_is_answered_or_refused(part: str, length: int, url: str) -> None:
    text = (part * length)[:length]
    texts = [text] * min(1024, (MAX_BODY_BYTES - 20) // (length + 4))
    answer = httpx.post(f"{url}/predict", json={"inputs": texts}, timeout=60)
    assert answer.status_code in (200, 503, 504), answer.text
    while httpx.post(f"{url}/predict", json={"inputs": "to Paris"}, timeout=60).status_code != 200:
        pass
