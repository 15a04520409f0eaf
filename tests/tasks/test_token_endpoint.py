"""The endpoint of classifiers of tokens answers as transformers' pipeline does."""

import asyncio
import contextlib
import dataclasses
import json
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.training import eval_sample
from serve.batching.client import InferenceClient, Load
from serve.batching.rows import Row, Tokenizer
from serve.config import ReplicaConfig
from serve.engines.engine import Choice
from serve.frontends.ipc import ScoreRequest
from serve.frontends.worker import RemoteClient
from serve.http import app
from serve.http.errors import HttpError
from serve.http.fast_path import connections
from serve.http.metrics import Metrics
from serve.tasks.registry import endpoint_of
from serve.tasks.token_classification.handler import TokenHandler
from serve.tasks.token_classification.windows import Windows
from serve.tools import client, export, load_generator
from serve.version import ModelVersion
from tests.serve.live import on_socket
from tests.tasks import token_rows

pytestmark = pytest.mark.filterwarnings("ignore")
TASK = "token-classification"
PIECES = (
    *("Ada", "Lovelace", "Paris", "New York", "Rome.", "Bob's", "with", "today,", "Carol Smith"),
    *("東京", "한국", "👩‍👩‍👧‍👦", "🎉", "cafe\u0301", "naïve", "İ", "ß", "नमस्ते", "مرحبا", "\u200b"),
    *("a\u00a0b", "\t", "line\nbreak", "[SEP]", "@Ada", "http://t.co/x", "U.S.", "x" * 120),
)
ENGINES = ("torch-fp32", "torch-bf16", "onnx-fp32", "openvino-fp32")


@pytest.fixture(scope="module")
def pipeline(entity_version: ModelVersion) -> Any:
    return transformers.pipeline(TASK, entity_version.path, aggregation_strategy="first")


@contextlib.contextmanager
def served(version: ModelVersion, engine: Any = "torch-fp32") -> Iterator[TokenHandler]:
    handler: Any = endpoint_of(TASK).load(ReplicaConfig(version, engine=engine))
    assert handler.choice.engine == engine, handler.choice.trials
    try:
        yield handler
    finally:
        handler.client.close()


async def answered(handler: TokenHandler, inputs: Any) -> Any:
    return json.loads((await handler.predict(json.dumps({"inputs": inputs}).encode(), 60)).body)


def texts(count: int) -> list[str]:
    """Mixed texts within the model's limit."""
    draw = random.Random(1)
    separators = (" ", "  ", "\n", ", ", "")
    return [
        draw.choice(separators).join(draw.choices(PIECES[:-1], k=draw.randrange(8)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_it_answers_as_the_pipeline_does(
    engine: Any, entity_version: ModelVersion, pipeline: Any
) -> None:
    """Spans to the character, alone and in lists; bf16 has its own rounding."""
    asked = texts(200)
    with served(entity_version, engine) as handler:
        kept = [text for text in asked if len(handler._windows.of([text])[0].rows) < 2]
        few = kept if engine == "torch-fp32" else kept[:60]

        async def both() -> tuple[list[Any], list[Any]]:
            alone = [await answered(handler, text) for text in few]
            return alone, await answered(handler, few)

        alone, together = asyncio.run(both())
    assert len(kept) > 150
    for text, *answers in zip(few, alone, together, strict=True):
        wanted = pipeline(text) if text else []
        for answer in answers:
            found = answer["entities"]
            assert all(each["text"] == text[each["start"] : each["end"]] for each in found)
            if engine == "torch-bf16":
                continue
            assert [(e["entity"], e["start"], e["end"]) for e in found] == [
                (e["entity_group"], e["start"], e["end"]) for e in wanted
            ], text
            scores = [each["score"] for each in found]
            assert scores == pytest.approx([each["score"] for each in wanted], abs=1e-3)
    assert sum(len(answer["entities"]) for answer in alone) > 30


@pytest.mark.slow
def test_int8_is_offered_where_it_finds_the_same(entity_version: ModelVersion) -> None:
    """Only this quantizes such a model: offered, or refused with a sentence on what differs."""
    handler: Any = endpoint_of(TASK).load(ReplicaConfig(entity_version, precision="int8"))
    handler.client.close()
    (first, *_) = handler.choice.trials
    assert first.engine == "openvino-int8"
    assert not first.refusal or "in entities another label" in first.refusal


@pytest.fixture(scope="module")
def windows(entity_version: ModelVersion) -> Any:
    """Windows of 16 tokens, with a tokenizer that divides nothing beside them."""
    made: Any = Windows(Tokenizer(Path(entity_version.path), 16))
    made.whole = made._fast.from_str(made._fast.to_str())
    made.whole.no_truncation()
    return made


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=60).map(" ".join))
@settings(max_examples=80, deadline=None)
def test_windows_hold_each_token_once_with_its_characters(windows: Any, text: str) -> None:
    """As one long row has them, for any Unicode."""
    (found,) = windows.of([text])
    encoded = windows.whole.encode(text, add_special_tokens=False)
    parts = [
        (token, place)
        for token, place in zip(encoded.ids, encoded.offsets, strict=True)
        if text[slice(*place)].strip()
    ]
    ids = [
        row.ids[at] for row, places in zip(found.rows, found.places, strict=True) for at in places
    ]
    assert ids == [token for token, _ in parts]
    assert all(len(row) <= 16 for row in found.rows)
    scores = [np.eye(3, dtype=np.float32)[np.ones(len(row), int)] for row in found.rows]
    for entity in found.entities(scores, ("O", "B-a", "I-a")):
        assert text[entity.start : entity.end] == text[entity.start : entity.end].strip()
        assert entity.start < entity.end


def test_long_texts_are_read_whole(entity_version: ModelVersion) -> None:
    """Entities at every place of a text of many windows, as in a text of their own."""
    part = "the old house , Ada Lovelace went to New York with Bob and "
    text = part * 60

    async def go(handler: TokenHandler) -> tuple[Any, Any]:
        return await answered(handler, part), await answered(handler, [text, "", text])

    with served(entity_version) as handler:
        alone, (first, nothing, second) = asyncio.run(go(handler))
    assert nothing == {"entities": []}
    for one, other in zip(first["entities"], second["entities"], strict=True):
        assert one == {**other, "score": pytest.approx(one["score"], abs=1e-4)}
    found = {(e["entity"], e["start"], e["end"]) for e in first["entities"]}
    wanted = {
        (e["entity"], e["start"] + at * len(part), e["end"] + at * len(part))
        for e in alone["entities"]
        for at in range(60)
    }
    assert len(wanted) >= 120
    assert len(found & wanted) > 0.95 * len(wanted)


def counted_texts(handler: TokenHandler) -> float:
    """The counter of answered texts."""
    return float(handler.metrics.texts._value.get())


def test_metrics_count_texts_and_not_their_windows(entity_version: ModelVersion) -> None:
    async def go(handler: TokenHandler) -> None:
        await answered(handler, ["Ada went to Rome " * 900, "to Paris", ""])
        await answered(handler, "Ada in Rome " * 40)
        await answered(handler, ["", " "])

    with served(entity_version) as handler:
        asyncio.run(go(handler))
        assert counted_texts(handler) == 3 + 1 + 2
        assert sum(handler.metrics.latency.counts) == 3
        assert handler.load == Load(0, 0.0, handler.load.tokens_per_s)


def test_texts_that_are_being_tokenised_have_deadlines_and_fill_the_queue(
    entity_version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = json.dumps({"inputs": ["Ada went to Rome " * 5_000] * 8}).encode()
    short = json.dumps({"inputs": "to Paris"}).encode()
    go_on, divide, divided = threading.Event(), Windows.of, list[Any]()

    def hold(self: Windows, texts: Any) -> Any:
        divided.append(texts)
        go_on.wait(60)
        return divide(self, texts)

    async def go(handler: TokenHandler) -> None:
        first = asyncio.create_task(handler.predict(long, 0.3))
        await asyncio.sleep(0)
        assert handler.load.requests == 1
        for body in (long, short):
            with pytest.raises(HttpError) as full:
                await handler.predict(body, 60)
            assert full.value.status == 503
        with pytest.raises(HttpError) as late:
            await first
        assert (late.value.status, handler.load.requests) == (504, 1)
        go_on.set()
        async with asyncio.timeout(60):
            while handler.load.requests:
                await asyncio.sleep(0.01)
        assert len(divided) <= 1  # it ended after the text that was being tokenised

    with served(entity_version) as handler:
        handler.adjust({"queue_tokens": 1_000})
        monkeypatch.setattr(Windows, "of", hold)
        asyncio.run(go(handler))
        assert counted_texts(handler) == 0


def test_evaluation_texts_are_cut_to_what_one_request_holds(
    entity_version: ModelVersion, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(entity_version.path, folder)
    rows = eval_sample.read(folder)[:3]
    tails = ("", " " * 150_000, "\u3000" * 300_000)  # no tokens, so that the labels still fit
    longer = [
        dataclasses.replace(row, texts=(row.texts[0] + tail,))
        for row, tail in zip(rows, tails, strict=True)
    ]
    eval_sample.write(longer, folder)
    version = dataclasses.replace(entity_version, path=str(folder))
    texts = endpoint_of(TASK).evaluation_texts(version)
    assert len(texts) == len(longer)
    for text, row in zip(texts, longer, strict=True):
        assert row.texts[0].startswith(text)
        assert len(text) <= 100_000
        assert len(json.dumps({"inputs": text})) <= 2**20


def test_it_serves_http_pages_python_and_loads(entity_version: ModelVersion) -> None:
    endpoint = endpoint_of(TASK)
    with served(entity_version) as handler:
        app.install(handler)
        application = app.guarded(endpoint.application())
        with on_socket(application, connections(app.current_handler)) as url:
            answer = httpx.post(f"{url}/predict", json={"inputs": "with Ada Lovelace"})
            assert [e["text"] for e in answer.json()["entities"]] == ["Ada Lovelace"]
            assert answer.headers["x-model-version"] == entity_version.id
            assert httpx.get(f"{url}/health").json()["labels"] == ["person", "place"]
            assert "<h1" in httpx.get(f"{url}/").text
            (only,) = client.predict(url, ["to Paris"], {})
            assert [(e.entity, e.start, e.end, e.text) for e in only] == [("place", 3, 8, "Paris")]
            for body in (3, [], [3], {"text": "a", "text_pair": "b"}, "x" * 100_001):
                assert httpx.post(f"{url}/predict", json={"inputs": body}).status_code == 422
            assert httpx.post(f"{url}/predict", content=b"{").status_code in (400, 415)
            odd = "".join(map(chr, (0x1F, 0x7F, 0x85, 0x2028, 0xFEFF, 0x10FFFF))) + "\x00 e\u0301"
            for text in (odd, odd * 900, " \n"):
                assert httpx.post(f"{url}/predict", json={"inputs": [text]}).status_code == 200
            plan = load_generator.Plan(url, 0.5, concurrency=2, texts_per_request=2)
            result = asyncio.run(load_generator.run(plan, ["Ada in Rome", "to Paris"]))
            assert result.failed == 0 < result.requests

            def ask(_: ModelVersion, body: Any) -> Any:
                return httpx.post(f"{url}/predict", json=body).json()

            compared, asked = endpoint.compare(entity_version, entity_version, ask)
            assert compared is not None
            assert len(asked) == token_rows.EVAL_ROWS
            assert (compared.metrics["agreement"].value, compared.metrics["f1"].value) == (1.0, 0.0)
            other = dataclasses.replace(entity_version, labels=("O", "B-x", "I-x"))
            assert endpoint.compare(entity_version, other, ask) == (None, ())
        app._current.clear()


def test_frontend_workers_send_rows_that_are_tokenised_already(
    entity_version: ModelVersion,
) -> None:
    sent = list[Any]()

    class Channel:
        """Stands at the replica's end."""

        def send(self, message: Any) -> None:
            sent.append(message)

    async def go() -> None:
        remote = RemoteClient(Tokenizer(Path(entity_version.path), 48), Channel())  # type: ignore[arg-type]
        metrics = Metrics(entity_version.name, entity_version.id)
        choice = Choice("torch-fp32", 256, 0.0)
        config = ReplicaConfig(entity_version)
        handler: Any = endpoint_of(TASK).in_frontend(config, choice, remote, metrics)
        for text in ("Ada went to Rome", "Ada went to Rome " * 400):
            ticket = handler.submit(json.dumps({"inputs": text}).encode(), 9.0, lambda _: None)
            while ticket.scoring is None:
                await asyncio.sleep(0.01)
            handler.cancel(ticket)

    asyncio.run(go())
    requests = [message for message in sent if isinstance(message, ScoreRequest)]
    one, many = (len(request.rows) for request in requests)
    assert one == 1
    assert many > 30
    assert all(isinstance(row, Row) for request in requests for row in request.rows)
    assert issubclass(RemoteClient, InferenceClient)
    assert Load(1, 0.0, None).backlog_s == 0.0


@pytest.mark.parametrize("form", ["onnx", "triton"])
def test_its_graph_is_exported(form: Any, entity_version: ModelVersion, tmp_path: Path) -> None:
    made = export.export(entity_version, form, tmp_path / "graph")
    assert made.texts_per_s > 0
    if form == "triton":
        text = (tmp_path / "graph" / entity_version.name / "config.pbtxt").read_text(
            encoding="utf-8"
        )
        assert "dims: [ -1, 5 ]" in text
