"""Classifiers of tokens answer the Open Inference Protocol with the entities of each text."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serve.config import ReplicaConfig
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion
from tests.serve.live import on_socket

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = ["with Ada Lovelace to Paris", "", "the old house"]


@pytest.fixture(scope="module")
def url(entity_version: ModelVersion) -> Iterator[str]:
    endpoint: Any = endpoint_of("token-classification")
    handler = endpoint.load(ReplicaConfig(entity_version, engine="torch-fp32"))
    app.install(handler)
    try:
        application = app.guarded(endpoint.application())
        with on_socket(application, connections(app.current_handler)) as found:
            yield found
    finally:
        handler.client.close()


def infer(url: str, name: str, *texts: str, tensor: str = "text") -> httpx.Response:
    inputs = [{"name": tensor, "shape": [len(texts)], "datatype": "BYTES", "data": [*texts]}]
    return httpx.post(f"{url}/v2/models/{name}/infer", json={"id": "7", "inputs": inputs})


def test_the_tensor_has_the_entities_that_predict_gives(
    url: str, entity_version: ModelVersion
) -> None:
    answer = infer(url, entity_version.name, *TEXTS).json()
    (output,) = answer["outputs"]
    assert (answer["id"], answer["model_version"]) == ("7", entity_version.id)
    assert (output["name"], output["shape"], output["datatype"]) == ("entities", [3], "BYTES")
    predicted = httpx.post(f"{url}/predict", json={"inputs": TEXTS}).json()
    assert [json.loads(text) for text in output["data"]] == [row["entities"] for row in predicted]
    assert [each["text"] for each in json.loads(output["data"][0])] == ["Ada Lovelace", "Paris"]


def test_the_model_describes_its_tensors(url: str, entity_version: ModelVersion) -> None:
    found = httpx.get(f"{url}/v2/models/{entity_version.name}").json()
    assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert found["outputs"] == [{"name": "entities", "datatype": "BYTES", "shape": [-1]}]


def test_texts_may_be_as_long_as_those_of_predict(url: str, entity_version: ModelVersion) -> None:
    assert infer(url, entity_version.name, "to Paris " * 2_000).status_code == 200
    refused = infer(url, entity_version.name, "x" * 100_001)
    assert refused.status_code == 422
    assert "more than 100000 characters" in refused.text
    assert infer(url, entity_version.name, "a", tensor="words").status_code == 422
    assert infer(url, "another", "a").status_code == 404
