"""The endpoint of sentence embeddings: OpenAI's form, similarities, engines, fuzz, gate, load."""

import asyncio
import base64
import functools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import openai
import pytest
import schemathesis
import torch
import transformers

from jobs.spec.serve import EngineName
from serve.batching.rows import Tokenizer
from serve.config import ReplicaConfig
from serve.engines import engine_factory
from serve.engines.acceptance import AcceptanceCheck
from serve.engines.engine_factory import EngineFactory
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.registry import endpoint_of
from serve.tasks.sentence_embedding import endpoint as embedding_endpoint
from serve.tasks.sentence_embedding import routes
from serve.tools import client, load_generator
from serve.version import ModelVersion
from tests.serve.live import on_socket
from tests.tasks.embedding import NOUNS, SCORED, TASK, TRIPLETS, VERBS, publish, write_rows

pytestmark = pytest.mark.filterwarnings("ignore")
BOUNDS: dict[EngineName, float] = {
    "torch-fp32": 1e-5,
    "onnx-fp32": 1e-4,
    "openvino-fp32": 1e-4,
    "torch-bf16": 0.02,
    "openvino-bf16": 0.02,
    "openvino-int8": 0.02,
}
"""Largest difference of a cosine from transformers' in fp32."""
SCRIPTS = (
    "the dog runs",
    "Ein Hund läuft schnell",
    "собака бежит",
    "猫は寝る",
    "كلب يجري",
    "🐕 ok",
)
RECORDED = Path(__file__).parents[1] / "serve" / "recorded_requests.json"
FEW = 25
"""Made-up requests at each operation."""


def mixed_texts(count: int) -> list[str]:
    """Texts of mixed length and script; some are longer than the model's limit."""
    draw = random.Random(4)
    return [" ".join(draw.choices(SCRIPTS, k=draw.choice((1, 1, 2, 3, 12)))) for _ in range(count)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def version(rows: Path, tiny_model: str) -> ModelVersion:
    return publish(rows, tiny_model, [], **TRIPLETS)


@pytest.fixture(scope="module")
def first_tokens(rows: Path, tiny_model: str) -> ModelVersion:
    """A model whose vectors are first tokens, of any length."""
    return publish(rows, tiny_model, [], **SCORED, pooling="cls", normalize=False)


@pytest.fixture(scope="module")
def padded(rows: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """A model whose rows are padded, not packed."""
    folder = tmp_path_factory.mktemp("distilbert")
    transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    config = transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64)
    torch.manual_seed(0)
    transformers.DistilBertModel(config).save_pretrained(folder)
    return publish(rows, str(folder), [], **TRIPLETS)


def expected_of(version: ModelVersion, texts: list[str]) -> Any:
    """Vectors of plain transformers, each text alone."""
    return vectors_of(version.path, tuple(texts))


@functools.cache
def vectors_of(folder: str, texts: tuple[str, ...]) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    is_mean = (Path(folder) / "2_Normalize").exists()
    found = []
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, truncation=True, return_tensors="pt"))[0][0]
        found.append(torch.nn.functional.normalize(hidden.mean(0), dim=0) if is_mean else hidden[0])
    return torch.stack(found).numpy()


def cosines(vectors: Any) -> Any:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("version", name) for name in BOUNDS),
        ("padded", "openvino-fp32"),
        ("padded", "openvino-int8"),
        *(("first_tokens", name) for name in BOUNDS if name.endswith("-fp32")),
    ],
)
def test_every_engine_gives_the_vectors_of_transformers(
    name: EngineName, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    version = request.getfixturevalue(kind)
    folder = Path(version.path)
    tokenizer = Tokenizer(folder, version.max_length)
    sample = engine_factory.read_eval_sample(folder, "vector")
    engine = EngineFactory(folder, tmp_path, tokenizer, "cpu", 1).make(name, sample)
    texts = mixed_texts(200)
    made = tokenizer.rows([(text,) for text in texts])
    expected = expected_of(version, texts)
    together = np.concatenate([engine.run(made[n : n + 40]) for n in range(0, 200, 40)])
    alone = np.concatenate([engine.run([row]) for row in made[:40]])
    assert together.shape == expected.shape
    assert np.abs(cosines(together) - cosines(expected)).max() < BOUNDS[name]
    assert np.abs(cosines(alone) - cosines(expected[:40])).max() < BOUNDS[name]
    lengths = np.linalg.norm(together, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.abs(lengths - 1).max() < BOUNDS[name]
    assert sample.scores is not None
    assert AcceptanceCheck(sample, sample.scores).run(engine).refusal == ""


def test_an_engine_with_other_vectors_is_refused(version: ModelVersion, tmp_path: Path) -> None:
    folder = Path(version.path)
    sample = engine_factory.read_eval_sample(folder, "vector")
    assert sample.scores is not None
    tokenizer = Tokenizer(folder, version.max_length)

    @dataclass
    class Turned:
        """An engine whose vectors point elsewhere, by less than a score's usual bound."""

        name: EngineName = "torch-fp32"
        is_packed: bool = False

        def run(self, rows: Any) -> Any:
            """The engine's vectors with their numbers in another order."""
            real = EngineFactory(folder, tmp_path, tokenizer, "cpu", 1).make(self.name, sample)
            return np.roll(real.run(rows), 1, axis=1)

        def launch(self, rows: Any) -> Any:
            """As `run`."""
            return lambda: self.run(rows)

    refusal = AcceptanceCheck(sample, sample.scores).run(Turned()).refusal
    assert "of the rows other scores than training" in refusal


@dataclass(frozen=True, slots=True)
class Live:
    """An endpoint on a socket."""

    url: str
    version: ModelVersion


@pytest.fixture(scope="module")
def live(version: ModelVersion) -> Iterator[Live]:
    handler: Any = endpoint_of(TASK).load(ReplicaConfig(version, engine="torch-fp32", timeout_s=10))
    app.install(handler)
    with on_socket(app.guarded(routes.api), connections(app.current_handler)) as url:
        yield Live(url, version)
    handler.client.close()
    app._current.clear()


def test_it_answers_in_the_form_of_openai(live: Live) -> None:
    texts = mixed_texts(200)
    expected = expected_of(live.version, texts)
    for path in ("embeddings", "v1/embeddings"):
        body = {"input": texts, "model": "sentences", "user": "me"}
        answer = httpx.post(f"{live.url}/{path}", json=body)
        found = answer.json()
        vectors = np.array([each["embedding"] for each in found["data"]])
        assert np.abs(vectors - expected).max() < 1e-5
        assert [each["index"] for each in found["data"]] == list(range(200))
        assert (found["object"], found["model"]) == ("list", "sentences")
        assert {each["object"] for each in found["data"]} == {"embedding"}
        assert answer.headers["x-truncated"] == "true"
        assert answer.headers["x-model-version"] == live.version.id
    tokenizer = transformers.AutoTokenizer.from_pretrained(live.version.path)
    tokens = sum(len(ids) for ids in tokenizer(texts, truncation=True)["input_ids"])
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    alone = httpx.post(f"{live.url}/embeddings", json={"input": texts[0]}).json()
    assert np.abs(np.array(alone["data"][0]["embedding"]) - expected[0]).max() < 1e-5


def test_openai_s_package_and_other_clients_get_vectors(live: Live) -> None:
    texts = ["the dog runs", "a cat", "猫は寝る"]
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as made:
        found = made.embeddings.create(model="sentences", input=texts)
    vectors = np.array([each.embedding for each in found.data])
    assert np.abs(vectors - expected_of(live.version, texts)).max() < 1e-5
    recorded = json.loads(RECORDED.read_text())
    bodies = [each["body"] for each in recorded if each["path"] == "/v1/embeddings"]
    assert len(bodies) == 2
    for body in bodies:
        answer = httpx.post(f"{live.url}/v1/embeddings", json={**body, "model": "sentences"})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["data"]) == len(body["input"])


def test_vectors_come_as_base64_and_cut_to_fewer_dimensions(live: Live) -> None:
    body = {"input": ["the dog runs", "a cat"], "encoding_format": "base64", "dimensions": 8}
    found = httpx.post(f"{live.url}/embeddings", json=body).json()["data"]
    vectors = np.stack([np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in found])
    cut = expected_of(live.version, body["input"])[:, :8]  # type: ignore[arg-type]
    assert vectors.shape == (2, 8)
    assert np.abs(vectors - cut / np.linalg.norm(cut, axis=1, keepdims=True)).max() < 1e-5


def test_similarities_are_cosines_as_those_of_a_pipeline(live: Live) -> None:
    texts = mixed_texts(20)
    inputs = {"source_sentence": texts[0], "sentences": texts[1:]}
    found = httpx.post(f"{live.url}/similarity", json={"inputs": inputs}).json()
    expected = cosines(expected_of(live.version, texts))[0, 1:]
    assert np.abs(np.array(found) - expected).max() < 1e-5
    few = httpx.post(f"{live.url}/similarity", json={"inputs": inputs, "dimensions": 4}).json()
    assert np.abs(np.array(few) - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("embeddings", {"input": []}, 422, "input must be a string, or a list of 1 to 1024"),
        ("embeddings", {"input": [[1, 2]]}, 422, "token ids are not accepted"),
        ("embeddings", {"input": "a", "dimensions": 33}, 422, "dimensions must be at most 32"),
        ("embeddings", {"input": "a", "model": "other"}, 404, "this endpoint serves sentences"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, 422, "encoding_format"),
        ("similarity", {"inputs": {"source_sentence": "a"}}, 422, "sentences"),
        ("similarity", {"inputs": "a"}, 422, "inputs"),
        ("v1/embeddings", {}, 422, "input"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    path: str, body: Any, status: int, message: str, live: Live
) -> None:
    answer = httpx.post(f"{live.url}/{path}", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_health_models_page_and_open_inference_describe_the_model(live: Live) -> None:
    health = httpx.get(f"{live.url}/health").json()
    assert (health["task"], health["dimensions"], health["max_length"]) == (TASK, 32, 32)
    assert httpx.get(f"{live.url}/v1/models").json()["data"][0]["id"] == "sentences"
    assert "source_sentence" in httpx.get(f"{live.url}/").text
    tensor = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a dog", "a cat"]}
    answer = httpx.post(f"{live.url}/v2/models/sentences/infer", json={"inputs": [tensor]}).json()
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"]) == ("embedding", [2, 32])
    expected = expected_of(live.version, ["a dog", "a cat"]).ravel()
    assert np.abs(np.array(output["data"]) - expected).max() < 1e-5


schema = schemathesis.openapi.from_dict(routes.api.openapi())


@schema.include(path_regex="embeddings|similarity").parametrize()
@hypothesis.settings(
    max_examples=FEW,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_no_made_up_request_is_an_error_of_the_server(case: Any, live: Live) -> None:
    answer = case.call(base_url=live.url, timeout=10)
    assert answer.status_code < 500 or answer.status_code in (503, 504), answer.text


def test_python_and_a_load_test_ask_it(live: Live) -> None:
    texts = [f"the {noun} {verb}" for noun in NOUNS for verb in VERBS]
    found = client.predict(live.url, texts, {"dimensions": 16})
    assert len(found) == 80
    assert {len(vector) for vector in found} == {16}  # type: ignore[arg-type]
    for count in (1, 4):
        test = load_generator.Plan(live.url, 0.4, concurrency=2, texts_per_request=count)
        result = asyncio.run(load_generator.run(test, texts))
        assert result.failed == 0 < result.requests


def test_a_rollout_compares_vectors_and_the_metric(live: Live, rows: Path) -> None:
    def ask(_: ModelVersion, body: Any) -> Any:
        return httpx.post(f"{live.url}/embeddings", json=body).json()

    endpoint = endpoint_of(TASK)
    comparison, texts = endpoint.compare(live.version, live.version, ask)
    assert comparison is not None
    assert comparison.metrics["mrr"].value == 0.0
    assert comparison.metrics["agreement"].value == pytest.approx(1.0, abs=1e-5)
    assert len(texts) == 37 == len(endpoint.evaluation_texts(live.version))


def test_a_rollout_of_scored_pairs_compares_correlations(first_tokens: ModelVersion) -> None:
    def ask(version: ModelVersion, body: Any) -> Any:
        vectors = expected_of(version, body["input"]).tolist()
        return {"data": [{"embedding": vector} for vector in vectors]}

    comparison, texts = endpoint_of(first_tokens.task).compare(first_tokens, first_tokens, ask)
    assert (first_tokens.task, len(texts)) == (f"{TASK}/scored", 37)
    assert comparison is not None
    assert comparison.metrics.keys() == {"spearman", "agreement"}
    assert comparison.metrics["spearman"].value == 0.0


@pytest.mark.parametrize("is_scored", [False, True])
def test_worse_vectors_break_the_gates_rules(is_scored: bool) -> None:  # noqa: FBT001
    draw = np.random.default_rng(2)
    first = draw.normal(size=(60, 8)).astype(np.float32)
    scores = draw.uniform(-1, 1, 60)
    # vectors whose cosine is the score, or equal vectors
    beside = draw.normal(size=(60, 8))
    unit = first / np.linalg.norm(first, axis=1, keepdims=True)
    beside -= (beside * unit).sum(axis=1, keepdims=True) * unit
    beside /= np.linalg.norm(beside, axis=1, keepdims=True)
    wanted = scores[:, None] * unit + np.sqrt(1 - scores[:, None] ** 2) * beside
    good = np.concatenate([first, wanted if is_scored else first]).astype(np.float32)
    bad = np.concatenate([first, draw.normal(size=(60, 8))]).astype(np.float32)
    texts = [[f"{role} {row}" for row in range(60)] for role in "ab"]
    rows = embedding_endpoint.EvaluationRows(texts, scores.tolist())
    found = embedding_endpoint.compare(rows, good, bad, is_scored=is_scored).metrics
    name = "spearman" if is_scored else "mrr"
    assert found[name].value < -0.5
    assert not found[name].is_chance
    assert found["agreement"].value < 0.8
    same = embedding_endpoint.compare(rows, good, good, is_scored=is_scored).metrics
    assert (same[name].value, same[name].is_chance) == (0.0, True)
