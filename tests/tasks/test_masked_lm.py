"""Masked language models: rows, masks, exact metrics, proof, resume, and the endpoint."""

import asyncio
import dataclasses
import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from jobs.errors import DataError, DeployError
from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.serve import EngineName
from jobs.spec.train import CheckpointSpec, OptimizerSpec
from jobs.storage.storage import open_storage
from jobs.tasks.masked_lm import rows as masked_rows
from jobs.tasks.masked_lm import training
from jobs.tasks.masked_lm.task import MaskedData
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.data.tokens import TokenStore
from jobs.training.events import CheckpointRef, Evaluated, Event, Proven, Started, Stepped
from jobs.training.loop import train
from orchestrator.records import registry
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.errors import HttpError
from serve.tasks.masked_lm.handler import FillMaskHandler
from serve.tasks.masked_lm.schemas import FillRequest
from serve.tasks.registry import endpoint_of
from serve.tools.export import export
from serve.version import ModelVersion
from tests import tiny
from tests.builders import job, training_config
from tests.jobs.training import workers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LENGTH = 32
TEXTS = (
    "A superb moving delightful film indeed.",
    "",
    "What is the colour of a film? Yes, it is. No, it is not.",
    "Été à Zürich, 日本 and a dull film.",
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents, one of four of them empty."""
    folder = tmp_path_factory.mktemp("documents")
    for name, count in (("train", 60), ("eval", 22)):
        lines = [json.dumps({"text": TEXTS[n % 4] * (1 + n % 3)}) for n in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small BERT with random weights and a tokenizer with a mask token."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny.save(folder, "bert", transformers.AutoModelForMaskedLM)
    tiny.tokenizer(mask_token="<mask>").save_pretrained(folder)
    return str(folder)


def config(documents: Path, base: str, **fields: Any) -> TrainingConfig:
    """Training on the documents."""
    values = {
        "model": ModelSpec(base=base, task="masked-lm"),
        "data": MaskedData(
            train=SourceSpec(path=str(documents / "train.jsonl")),
            eval=SourceSpec(path=str(documents / "eval.jsonl")),
            text="text",
            max_length=LENGTH,
        ),
        "global_batch_size": 8,
        "micro_batch_size": 8,
        "metrics": ("perplexity", "token_accuracy"),
    }
    return training_config(documents, base, **{**values, **fields})


def evaluations(events: list[Event]) -> list[dict[str, float]]:
    """Metrics of each evaluation."""
    return [event.metrics for event in events if isinstance(event, Evaluated)]


def test_documents_are_joined_between_special_tokens(documents: Path, encoder: str) -> None:
    corpus = load_corpus(config(documents, encoder))
    tokens, tokenizer = corpus.train, corpus.tokenizer
    ids, starts = tokens.columns["input_ids"], tokens.offsets
    assert set(tokens.lengths[:-1]) == {LENGTH}
    assert set(ids[starts[:-1]]) == {tokenizer.bos_token_id}
    assert set(ids[starts[1:] - 1]) == {tokenizer.eos_token_id}
    lines = (documents / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [text for text in (json.loads(line)["text"] for line in lines) if text]
    inner = [ids[a + 1 : b - 1] for a, b in itertools.pairwise(starts)]
    stream = [int(token) for row in inner for token in row]
    between = tokenizer.eos_token_id
    expected = [t for text in texts for t in (*tokenizer(text)["input_ids"][1:-1], between)]
    assert stream == expected[:-1]


def test_rows_without_a_token_to_predict_are_left_out(documents: Path, encoder: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    special = np.array([tokenizer.bos_token_id, tokenizer.eos_token_id])
    word = int(max(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    data = config(documents, encoder).data
    assert isinstance(data, MaskedData)
    table = masked_rows._table([np.array([word, word]), special], data, tokenizer)
    assert table.column("input_ids").to_pylist() == [[word, word]]
    with pytest.raises(DataError, match="no row has a token to predict"):
        masked_rows._table([special], data, tokenizer)


def test_an_evaluation_predicts_the_same_tokens_each_time(documents: Path, encoder: str) -> None:
    corpus = load_corpus(config(documents, encoder))
    columns, tokenizer = corpus.eval.columns, corpus.tokenizer
    chosen, maskable = columns["loss_mask"] == 1, columns["maskable"] == 1
    assert set(columns["input_ids"][~maskable]) <= set(tokenizer.all_special_ids)
    assert not (chosen & ~maskable).any()
    read = columns["masked_ids"]
    assert (read[~chosen] == columns["input_ids"][~chosen]).all()
    assert (read[chosen] == tokenizer.mask_token_id).mean() == pytest.approx(0.8, abs=0.12)
    for row in range(len(corpus.eval)):
        part = slice(corpus.eval.offsets[row], corpus.eval.offsets[row + 1])
        count = int(maskable[part].sum())
        assert chosen[part].sum() == max(1, math.floor(0.15 * count + 0.5))


def test_training_draws_as_many_tokens_anew_in_each_step(documents: Path, encoder: str) -> None:
    corpus = load_corpus(config(documents, encoder))
    batch = TokenStore(corpus.train, torch.device("cpu")).gather(torch.arange(6), LENGTH)
    torch.manual_seed(3)
    first, second = training.draw(batch), training.draw(batch)
    torch.manual_seed(3)
    assert torch.equal(training.draw(batch), first)
    assert not torch.equal(first, second)
    for chosen in (first, second):
        assert torch.equal(chosen.sum(dim=1), batch["loss_mask"].sum(dim=1))
        assert not (chosen & (batch["maskable"] == 0)).any()


def test_every_token_is_drawn_equally_often(documents: Path, encoder: str) -> None:
    corpus = load_corpus(config(documents, encoder))
    batch = TokenStore(corpus.train, torch.device("cpu")).gather(torch.arange(1), LENGTH)
    torch.manual_seed(0)
    share = torch.stack([training.draw(batch) for _ in range(4000)]).float().mean(dim=0)[0]
    maskable = batch["maskable"][0] == 1
    expected = float(batch["loss_mask"].sum() / maskable.sum())
    assert share[maskable].sub(expected).abs().max() < 0.035
    assert share[~maskable].max() == 0


@pytest.fixture(scope="module")
def trained(
    documents: Path, encoder: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Event]]:
    """A trained model's folder, and what its training reported."""
    events: list[Event] = []
    spec = config(documents, encoder, epochs=8.0, optimizer=OptimizerSpec(lr=5e-3))
    folder = tmp_path_factory.mktemp("checkpoints")
    reference = train(spec, events.append, folder, proves=True)
    return Path(reference.path) / "model", events


def test_it_learns_and_the_saved_model_scores_as_in_training(
    trained: tuple[Path, list[Event]],
) -> None:
    found = evaluations(trained[1])
    assert found[-1]["perplexity"] < found[0]["perplexity"]
    assert found[-1]["perplexity"] == pytest.approx(math.exp(found[-1]["loss"]))
    proof = next(event for event in trained[1] if isinstance(event, Proven))
    assert proof.refusal == ""
    assert proof.difference < 1e-4


def test_perplexity_is_that_of_transformers_on_the_saved_rows(
    trained: tuple[Path, list[Event]],
) -> None:
    """All evaluation rows are saved, because there are fewer than 256."""
    folder, events = trained
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    total = count = 0.0
    for line in (folder / "gate.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        labels = [t if m else -100 for t, m in zip(row["originals"], row["trained"], strict=True)]
        with torch.no_grad():
            given = {"input_ids": torch.tensor([row["ids"]]), "labels": torch.tensor([labels])}
            total += float(model(**given).loss) * sum(row["trained"])
        count += sum(row["trained"])
    expected = math.exp(total / count)
    assert evaluations(events)[-1]["perplexity"] == pytest.approx(expected, rel=1e-4)


WORDS = ("A superb film", "été à Zürich", "日本 и мир", "What is the colour of a film?", "x" * 9)


def masked(number: int) -> str:
    """A text of mixed length and script with one to three masks."""
    parts = [WORDS[(number + n) % len(WORDS)] for n in range(1 + number % 2)]
    places = [number % (len(parts) + 1), *([0] * (number % 3 == 0)), *([1] * (number % 7 == 0))]
    for place in places:
        parts.insert(place, "<mask>")
    return " ".join(parts)


@pytest.fixture(scope="module")
def version(
    trained: tuple[Path, list[Event]], tmp_path_factory: pytest.TempPathFactory
) -> ModelVersion:
    """The trained model, published."""
    spec = job(model__task="masked-lm", data__max_length=2 * LENGTH)
    reference = CheckpointRef(str(trained[0].parent), 1, evaluations(trained[1])[-1])
    storage = open_storage(tmp_path_factory.mktemp("storage"))
    return registry.publish(spec, reference, (), run_id="test", storage=storage)


@pytest.fixture(scope="module")
def handler(version: ModelVersion) -> Iterator[FillMaskHandler]:
    """The endpoint's handler of the trained model, for which slow engines are checked too."""
    card = (Path(version.path) / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: fill-mask" in card
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serve.engines.selection.CHECK_THRESHOLD", 0.0)
        made = endpoint_of("masked-lm").load(ReplicaConfig(version))
    assert isinstance(made, FillMaskHandler)
    yield made
    made.close()


@pytest.fixture
def post(handler: FillMaskHandler) -> Iterator[Callable[..., httpx.Response]]:
    """Sends a request to the application in this process."""
    from serve.tasks.masked_lm import routes

    app.install(handler)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def send(content: str | None = None, **fields: Any) -> httpx.Response:
        given = {"content": content} if content is not None else {"json": fields}
        headers = {"content-type": "application/json"}
        return asyncio.run(client.post("/predict", headers=headers, timeout=60, **given))

    yield send
    app._current.clear()


def test_masks_are_filled_as_the_pipeline_fills_them(
    post: Callable[..., httpx.Response], trained: tuple[Path, list[Event]]
) -> None:
    """Two hundred texts, in lists and alone."""
    texts = [masked(number) for number in range(200)]
    pipeline = transformers.pipeline("fill-mask", str(trained[0]))
    expected = pipeline(texts, top_k=3)
    found = []
    for first in range(0, 200, 40):
        answer = post(inputs=texts[first : first + 40], top_k=3)
        assert answer.status_code == 200
        found += answer.json()
    for ours, theirs in zip(found, expected, strict=True):
        compare_fillings(ours, theirs)
    for number in (0, 1, 7):
        compare_fillings(post(inputs=texts[number], top_k=3).json(), expected[number])


def compare_fillings(ours: Any, theirs: Any) -> None:
    """Asserts that fillings are equal, with scores to 1e-3."""
    if isinstance(theirs[0], list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            compare_fillings(one, other)
        return
    assert [f["score"] for f in ours] == pytest.approx([f["score"] for f in theirs], abs=1e-3)
    by_token = {filling["token"]: filling for filling in theirs}
    for filling in ours:  # equal scores may come in another order
        other = by_token.get(filling["token"])
        if other is not None:
            assert filling["sequence"] == other["sequence"]
            assert filling["token_str"] == other["token_str"]


@pytest.mark.parametrize("name", ["torch-fp32", "onnx-fp32", "openvino-fp32"])
def test_every_engine_fills_as_the_pipeline_does(
    name: EngineName, version: ModelVersion, trained: tuple[Path, list[Event]]
) -> None:
    """Texts with one to three masks, in a list and alone."""
    texts = [masked(number) for number in range(40)]
    expected = transformers.pipeline("fill-mask", str(trained[0]))(texts, top_k=3)
    made = endpoint_of("masked-lm").load(ReplicaConfig(version, engine=name))
    assert isinstance(made, FillMaskHandler)

    def fill(inputs: Any) -> Any:
        request = FillRequest(inputs=inputs, top_k=3)
        return json.loads(asyncio.run(made.fill(request, 30)).body)

    try:
        assert made.info.engine == name
        compare_fillings(fill(texts), expected)
        for number in (0, 1, 7):
            compare_fillings(fill(texts[number]), expected[number])
    finally:
        made.close()


def test_an_engine_is_chosen_of_those_that_compute_in_fp32(handler: FillMaskHandler) -> None:
    results = {result.engine: result for result in handler.choice.trials}
    assert set(results) == {"openvino-fp32", "onnx-fp32", "torch-fp32"}
    assert not any(result.refusal for result in results.values())
    timed = [each for each in results.values() if each.alone_ms is not None]
    assert handler.info.engine == max(timed, key=lambda each: each.texts_per_s).engine


def test_the_exported_graph_predicts_hidden_tokens(
    version: ModelVersion, trained: tuple[Path, list[Event]], tmp_path: Path
) -> None:
    assert export(version, "onnx", tmp_path / "out").texts_per_s > 0
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = ["A superb <mask>", "<mask> film, indeed, a <mask>"]
    given = dict(tokenizer(texts, padding=True, return_tensors="np"))
    ids = given["input_ids"]
    places = np.flatnonzero(ids == tokenizer.mask_token_id)
    names = ("input_ids", "attention_mask")
    (logits,) = session.run(None, {**{name: given[name] for name in names}, "places": places})
    model = transformers.AutoModelForMaskedLM.from_pretrained(trained[0]).eval()
    with torch.no_grad():
        whole = model(**{name: torch.from_numpy(given[name]) for name in names}).logits
    assert logits == pytest.approx(whole.flatten(0, 1)[places].numpy(), abs=1e-4)
    with pytest.raises(DeployError, match="Triton cannot batch"):
        export(version, "triton", tmp_path / "repository")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"inputs": "no hidden word"}, 422, "inputs[0] has no mask token; write <mask>"),
        ({"inputs": ["a <mask>", "b"]}, 422, "inputs[1] has no mask token"),
        ({"inputs": "<mask> film" * 40}, 422, "the limit is 64"),
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": {"text": "a"}}, 422, "inputs must be a string with a mask token"),
        ({"inputs": "a <mask>", "top_k": 0}, 422, "top_k"),
        ({"inputs": "a <mask>", "labels": 3}, 422, "labels"),
        ({"content": "{"}, 400, "not valid JSON"),
        ({"content": '{"inputs": "\\ud800 <mask>"}'}, 422, ""),
        ({"content": "[1]"}, 422, ""),
    ],
)
def test_what_cannot_be_filled_is_refused_in_words(
    fields: dict[str, Any], status: int, message: str, post: Callable[..., httpx.Response]
) -> None:
    answer = post(**fields)
    assert answer.status_code in (status, 400)
    assert message in answer.json()["error"]["message"]


def test_the_longest_requests_are_bounded(post: Callable[..., httpx.Response]) -> None:
    """Each filling repeats its text, so that masks, words and texts multiply."""
    text = "<mask>" * 60
    refused = post(inputs=[text] * 64, top_k=100)
    assert refused.status_code == 422
    assert "send fewer texts or masks, or a smaller top_k" in refused.json()["error"]["message"]
    assert post(inputs=[text] * 2, top_k=5).status_code == 200
    for long in ("<mask> " * 1_170, "x" * 8_192, "日本" * 4_096):
        assert post(inputs=[long] * 20).status_code == 422
    assert post(inputs=["x" * 8_192] * 64, top_k=100).status_code == 422
    assert post(inputs="x" * 8_193).status_code == 422


def test_a_full_queue_refuses_before_a_text_is_read(
    post: Callable[..., httpx.Response], handler: FillMaskHandler
) -> None:
    handler._waiting[0] = handler.config.queue_tokens
    try:
        answer = post(inputs="a text without a mask")
    finally:
        del handler._waiting[0]
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1


def test_a_late_request_is_answered_at_its_time_and_ends(
    handler: FillMaskHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = FillRequest(inputs=["<mask>" * 60] * 40, top_k=20)
    go_on, fill, filled = threading.Event(), handler._filler._fill_batch, list[int]()

    def hold(rows: Any, top_k: int) -> Any:
        filled.append(len(rows))
        go_on.wait(60)
        return fill(rows, top_k)

    monkeypatch.setattr(handler._filler, "_fill_batch", hold)

    async def go() -> None:
        with pytest.raises(HttpError) as late:
            await handler.fill(request, 0.2)
        assert (late.value.status, go_on.is_set()) == (504, False)
        go_on.set()
        await handler.fill(FillRequest(inputs="a <mask>"), 60)

    asyncio.run(go())
    assert filled.pop() == 1
    assert len(filled) <= 1  # it ended after the batch that was being filled
    assert sum(filled) < 40
    assert handler.load.requests == 0


@pytest.mark.workers
def test_metrics_do_not_depend_on_the_number_of_workers(
    documents: Path, encoder: str, tmp_path: Path
) -> None:
    """No count divides the evaluation rows."""
    spec = config(documents, encoder, micro_batch_size=2, optimizer=OptimizerSpec(lr=1e-12))
    events: list[Event] = []
    train(spec, events.append)
    assert len(load_corpus(spec).eval) % 2
    found = [e for e in workers.run(spec, 2, tmp_path, None) if e["event"] == "Evaluated"]
    assert found[-1]["metrics"] == pytest.approx(evaluations(events)[-1], abs=1e-5)


def test_a_resume_draws_the_same_tokens(documents: Path, encoder: str, tmp_path: Path) -> None:
    spec = config(documents, encoder, checkpoint=CheckpointSpec(every=Cadence(2, "step"), keep=9))
    events: list[Event] = []
    whole = train(spec, events.append, tmp_path / "whole")
    stopped = dataclasses.replace(spec, stop_after_s=0.0)
    first = train(stopped, lambda _: None, tmp_path / "cut")
    assert first.step < whole.step
    again: list[Event] = []
    resumed = train(spec, again.append, tmp_path / "cut")
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    found = [event.loss for event in again if isinstance(event, Stepped)]
    assert found == losses[first.step :]
    assert resumed.metrics == whole.metrics


def test_a_base_without_a_mask_token_is_refused(documents: Path, tiny_llama: str) -> None:
    with pytest.raises(DataError, match="no mask token; choose an encoder"):
        load_corpus(config(documents, tiny_llama))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_are_captured_and_learn(documents: Path, encoder: str) -> None:
    spec = config(documents, encoder, device="cuda", precision="bf16", epochs=8.0)
    events: list[Event] = []
    train(spec, events.append)
    assert next(event.mode for event in events if isinstance(event, Started)) == "captured"
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    assert sum(losses[-4:]) < sum(losses[:4])
