"""Made-up requests to a language model's endpoint: never an error of the server's own."""

import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis

from serve.config import ReplicaConfig
from serve.http import app
from serve.tasks.causal_lm import routes
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion
from tests.serve.live import on_socket
from tests.serve.test_tools import TAGGED, tokenizer_of

pytestmark = pytest.mark.filterwarnings("ignore")
MADE_UP = 25
"""Requests at each operation."""
schema = schemathesis.openapi.from_dict(routes.api.openapi())


@pytest.fixture(scope="module")
def url(published: ModelVersion) -> Iterator[str]:
    """The endpoint of the tiny language model, with a template that knows tools."""
    made = endpoint_of("causal-lm").load(ReplicaConfig(published, timeout_s=5, max_context=120))
    assert isinstance(made, ChatHandler)
    made.generator.tokenizer = tokenizer_of(TAGGED)
    app.install(made)
    with on_socket(app.guarded(routes.api)) as place:
        yield place
    app._current.clear()
    made.generator.close()


@schema.include(path_regex="completions").parametrize()
@hypothesis.settings(
    max_examples=MADE_UP,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_no_made_up_request_is_an_error_of_the_server(case: Any, url: str) -> None:
    answer = case.call(base_url=url, timeout=20)
    assert answer.status_code < 500 or answer.status_code in (503, 504), answer.text
    if answer.status_code == 200 and "event-stream" in answer.headers["content-type"][0]:
        first, *_ = answer.text.split("\n\n")  # schemathesis reads the first twenty events
        assert json.loads(first.removeprefix("data: "))["choices"]
