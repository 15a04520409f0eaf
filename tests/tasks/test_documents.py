"""Language models on plain documents: rows, perplexity, and the endpoint that continues a text."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from jobs.errors import DataError
from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.events import Evaluated, Event, Started
from jobs.training.loop import train
from orchestrator.records import registry
from serve.config import ReplicaConfig
from serve.http import app
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion
from tests.builders import job, language_config, language_data
from tests.jobs.training import workers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LENGTH = 24


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents of different lengths, one of them empty."""
    folder = tmp_path_factory.mktemp("documents")
    for name, count in (("train", 40), ("eval", 12)):
        words = ("superb film", "dull film", "moving story about a dog", "été à Zürich, 日本")
        texts = [f"A {words[n % 4]} {'indeed ' * (n % 7)}ends." for n in range(count)]
        lines = [json.dumps({"text": text}) for text in (*texts, "")]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def config(documents: Path, base: str, **fields: Any) -> TrainingConfig:
    """Training on plain documents."""
    data = language_data(documents, prompt=None, response=None, text="text", max_length=LENGTH)
    return language_config(documents, base, data=data, **fields)


def tokens_of(folder: Path, split: str, tokenizer: Any) -> list[int]:
    """All documents end to end with an end token behind each."""
    lines = (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    found: list[int] = []
    for text in filter(None, (json.loads(line)["text"] for line in lines)):
        ids = tokenizer(text)["input_ids"]
        found += [*(ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids), tokenizer.eos_token_id]
    return found


def test_every_token_but_the_first_is_predicted_once(documents: Path, tiny_llama: str) -> None:
    corpus = load_corpus(config(documents, tiny_llama))
    expected = tokens_of(documents, "train", corpus.tokenizer)
    tokens = corpus.train
    assert set(tokens.lengths[:-1]) == {LENGTH}
    trained = tokens.columns["input_ids"][tokens.columns["loss_mask"] == 1].tolist()
    assert trained == expected[1:]
    assert tokens.targets.sum() == len(expected) - 1
    starts = tokens.columns["input_ids"][tokens.offsets[:-1]].tolist()
    assert starts == expected[:: LENGTH - 1][: len(starts)]
    assert corpus.end_tokens == (corpus.tokenizer.eos_token_id,)


def test_documents_without_text_are_refused(documents: Path, tiny_llama: str) -> None:
    empty = documents.parent / "empty"
    empty.mkdir(exist_ok=True)
    for split in ("train", "eval"):
        (empty / f"{split}.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="holds no text in column 'text'"):
        load_corpus(config(empty, tiny_llama))


@pytest.fixture(scope="module")
def trained(
    documents: Path, tiny_llama: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelVersion, list[Event]]:
    """A published version, and what its training reported."""
    folder, events = tmp_path_factory.mktemp("run"), list[Event]()
    fields = {"epochs": 6.0, "optimizer": OptimizerSpec(lr=5e-3)}
    reference = train(config(documents, tiny_llama, **fields), events.append, folder / "c")
    spec = job(data__max_length=LENGTH)
    spec = spec.model_copy(update={"model": ModelSpec(base=tiny_llama, task="causal-lm")})
    version = registry.publish(spec, reference, (), run_id="test", storage=open_storage(folder))
    return version, events


def test_perplexity_is_that_of_the_published_model_over_all_tokens(
    trained: tuple[ModelVersion, list[Event]], documents: Path
) -> None:
    version, events = trained
    model = transformers.AutoModelForCausalLM.from_pretrained(version.path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    ids, total = tokens_of(documents, "eval", tokenizer), 0.0
    for start in range(0, len(ids) - 1, LENGTH - 1):
        row = torch.tensor([ids[start : start + LENGTH]])
        with torch.no_grad():
            total += float(model(input_ids=row, labels=row).loss) * (row.shape[1] - 1)
    assert version.metrics["perplexity"] == pytest.approx(math.exp(total / (len(ids) - 1)), 1e-4)
    first = next(event for event in events if isinstance(event, Evaluated))
    assert version.metrics["perplexity"] < first.metrics["perplexity"]
    assert next(event for event in events if isinstance(event, Started)).labels == ()


@pytest.mark.workers
def test_perplexity_does_not_depend_on_the_number_of_workers(
    documents: Path, tiny_llama: str, tmp_path: Path
) -> None:
    """No count divides the evaluation rows."""
    spec = config(documents, tiny_llama, micro_batch_size=2)
    events: list[Event] = []
    train(spec, events.append)
    expected = [event.metrics for event in events if isinstance(event, Evaluated)][-1]
    assert len(load_corpus(spec).eval) % 2
    found = [e for e in workers.run(spec, 2, tmp_path, None) if e["event"] == "Evaluated"][-1]
    assert found["metrics"] == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.fixture
def client(trained: tuple[ModelVersion, list[Event]]) -> Iterator[httpx.AsyncClient]:
    """A client of the endpoint in this process."""
    from serve.tasks.causal_lm import routes

    handler = endpoint_of("causal-lm").load(ReplicaConfig(trained[0]))
    assert isinstance(handler, ChatHandler)
    app.install(handler)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    yield httpx.AsyncClient(transport=transport, base_url="http://test")
    app._current.clear()
    handler.generator.close()


def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """One continuation."""
    body = {"prompt": "A superb", "temperature": 0, "max_tokens": 8, **fields}
    return asyncio.run(client.post("/v1/completions", json=body, timeout=60))


@pytest.mark.parametrize("prompt", ["A superb", "A dull film indeed", "été", "a 日本 dog ends."])
def test_a_text_is_continued_as_the_pipeline_continues_it(
    prompt: str, client: httpx.AsyncClient, trained: tuple[ModelVersion, list[Event]]
) -> None:
    writer = transformers.pipeline("text-generation", trained[0].path)
    settings = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    (expected,) = writer(prompt, **settings)
    answer = post(client, prompt=prompt).json()
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert choice["text"] == expected["generated_text"]
    assert choice["finish_reason"] in ("stop", "length")
    assert answer["usage"]["total_tokens"] == sum(
        answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )


def test_a_stream_is_the_continuation_in_pieces(client: httpx.AsyncClient) -> None:
    whole = post(client).json()
    streamed = post(client, stream=True, stream_options={"include_usage": True})
    lines = [line for line in streamed.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    assert text == whole["choices"][0]["text"]
    assert events[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": []}, 422),
        ({"prompt": ["a", 5]}, 422),
        ({"prompt": None}, 422),
        ({"prompt": "word " * 60}, 422),
        ({"echo": True}, 422),
        ({"max_tokens": 0}, 422),
        ({"best_of": 2}, 422),
        ({"model": "another"}, 404),
    ],
)
def test_what_cannot_be_continued_is_refused(
    fields: dict[str, Any], status: int, client: httpx.AsyncClient
) -> None:
    answer = post(client, **fields)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
