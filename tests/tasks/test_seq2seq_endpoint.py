"""The endpoint of an encoder-decoder model: texts, lists, limits, loads, and the gate."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
import torch
from hypothesis import settings

from jobs.spec.train import OptimizerSpec
from jobs.training.loop import train
from serve.batching.client import DeadlineError, QueueFullError
from serve.config import ReplicaConfig
from serve.http import app
from serve.http.asgi import MAX_BODY_BYTES
from serve.http.errors import HttpError
from serve.http.fast_path import connections
from serve.tasks.answers import Answer
from serve.tasks.registry import endpoint_of
from serve.tasks.seq2seq import routes
from serve.tasks.seq2seq.batch import Batch
from serve.tasks.seq2seq.endpoint import compare
from serve.tasks.seq2seq.handler import WriterHandler
from serve.tasks.seq2seq.schemas import LONGEST_TEXT
from serve.tasks.seq2seq.writer import Settings
from serve.tools import load_generator
from serve.version import ModelVersion
from tests.builders import eventually
from tests.serve.live import on_socket, seen
from tests.tasks import swaps

pytestmark = pytest.mark.filterwarnings("ignore")
PATH = "/generate"
ODD = ("Ünïcödé is dull", "二つの映画 is moving", "🎬 a superb film", "\u202ereversed", "a\nb\tc")


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> ModelVersion:
    """A published BART that writes with two beams, inputs of at most 48 tokens."""
    folder = swaps.write(tmp_path_factory.mktemp("served"))
    data = swaps.data_of(folder, generate={"num_beams": 2, "max_new_tokens": 20})
    config = swaps.config_of(
        folder,
        swaps.base_of(folder, "bart"),
        data=data,
        epochs=16.0,
        optimizer=OptimizerSpec(lr=1e-2),
        metrics=("perplexity", "exact_match"),
    )
    reference = train(config, lambda _: None, folder / "checkpoints")
    return swaps.published(config, reference, folder / "registry")


@pytest.fixture(scope="module")
def handler(version: ModelVersion) -> Iterator[WriterHandler]:
    """The handler of that model."""
    made = endpoint_of(swaps.TASK).load(ReplicaConfig(version))
    assert isinstance(made, WriterHandler)
    yield made
    made.generator.close()


@pytest.fixture(scope="module")
def url(handler: WriterHandler) -> Iterator[str]:
    """The address of the endpoint on a real socket."""
    app.install(handler)
    api = app.guarded(endpoint_of(swaps.TASK).application())
    with on_socket(api, connections(app.current_handler)) as found:
        yield found
    app._current.clear()


def ask(url: str, inputs: Any, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}{PATH}", json={"inputs": inputs, **fields}, timeout=60)


def sources(count: int) -> list[str]:
    """Texts of mixed length and script."""
    draw = random.Random(5)
    found = list(ODD)
    while len(found) < count:
        words = draw.choices((*swaps.WORDS, "film", "é", "に", "is"), k=draw.randrange(1, 60))
        found.append(" ".join(words))
    return found[:count]


def test_200_texts_are_answered_as_transformers_writes_them(
    url: str, version: ModelVersion
) -> None:
    texts = sources(200)
    expected = swaps.plain_texts(version.path, texts)
    lists = [ask(url, texts[first : first + 50]).json() for first in range(0, 200, 50)]
    assert [row["text"] for rows in lists for row in rows] == expected
    alone = [ask(url, text).json()["text"] for text in texts[:20]]
    assert alone == expected[:20]
    assert len(set(expected)) > 5


def test_overrides_of_a_request_are_those_of_generate(url: str, version: ModelVersion) -> None:
    text = "a dull film is superb"
    for beams, most in ((1, 3), (4, 6)):
        (expected,) = swaps.plain_texts(version.path, [text], num_beams=beams, max_new_tokens=most)
        found = ask(url, text, num_beams=beams, max_new_tokens=most).json()
        assert found["text"] == expected
    assert ask(url, text, max_new_tokens=2).json()["finish_reason"] == "length"
    assert ask(url, text).json()["finish_reason"] == "stop"


def test_more_tokens_than_the_decoder_has_positions_are_not_written(
    url: str, handler: WriterHandler
) -> None:
    """The tiny decoder has 128 positions; a model that never ends is stopped at them."""
    with endless(handler):
        answer = ask(url, "a dull film", max_new_tokens=1000, num_beams=1)
    assert answer.status_code == 200
    assert answer.json()["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"inputs": []}, 422, "inputs"),
        ({"inputs": 3}, 422, "inputs must be a string, or a list of strings that is not empty"),
        ({"inputs": ["a"] * 129}, 422, "inputs"),
        ({"inputs": "a", "num_beams": 17}, 422, "num_beams"),
        ({"inputs": "a", "max_new_tokens": 0}, 422, "max_new_tokens"),
        ({"inputs": "a", "temperature": 1}, 422, "temperature"),
        ({"inputs": "film " * 99, "truncate": False}, 422, "more tokens than the model's limit"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    body: dict[str, Any], status: int, said: str, url: str
) -> None:
    answer = httpx.post(f"{url}{PATH}", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_long_inputs_are_cut_and_said_so(url: str, version: ModelVersion) -> None:
    answer = ask(url, "film " * 99)
    assert answer.headers["x-truncated"] == "true"
    assert "x-truncated" not in ask(url, "film").headers
    assert answer.headers["x-model-version"] == version.id


def test_health_page_and_document_describe_the_model(url: str, version: ModelVersion) -> None:
    health = httpx.get(f"{url}/health").json()
    assert (health["task"], health["prefix"], health["num_beams"]) == ("seq2seq", "name: ", 2)
    assert (health["max_length"], health["max_new_tokens"]) == (48, 20)
    assert health["metrics"] == version.metrics
    assert "Winnow playground" in httpx.get(f"{url}/").text
    assert PATH in httpx.get(f"{url}/openapi.json").json()["paths"]
    assert httpx.get(f"{url}{PATH}").status_code == 405
    metrics = httpx.get(f"{url}/metrics").text
    assert "winnow_serve_answer_tokens_total" in metrics


@pytest.mark.browser
def test_the_page_writes_a_text(url: str) -> None:
    text = ask(url, "a dull film is superb").json()["text"]
    assert text in seen(f"{url}/#text=a%20dull%20film%20is%20superb", text)


def test_requests_at_once_share_batches_and_get_their_own_texts(
    url: str, handler: WriterHandler
) -> None:
    texts = sources(12)
    expected = [ask(url, text).json() for text in texts]

    async def together() -> list[Any]:
        async with httpx.AsyncClient() as client:
            calls = (client.post(f"{url}{PATH}", json={"inputs": t}, timeout=60) for t in texts)
            return [answer.json() for answer in await asyncio.gather(*calls)]

    assert asyncio.run(together()) == expected
    assert eventually(lambda: handler.load.requests == 0)  # after the answers are sent


@contextlib.contextmanager
def endless(handler: WriterHandler) -> Iterator[None]:
    """The model ends no text before its tokens run out."""
    generator = handler.generator
    own, ends = generator._model.generation_config, generator._ends
    kept, own.eos_token_id, generator._ends = own.eos_token_id, None, frozenset()
    try:
        yield
        assert eventually(lambda: generator.load.requests == 0)
    finally:
        own.eos_token_id, generator._ends = kept, ends


def test_a_full_queue_and_a_deadline_are_told(handler: WriterHandler) -> None:
    generator = handler.generator

    async def late() -> None:
        await generator.write(["a film"], Settings(4, 1), 0.0)

    with pytest.raises(DeadlineError):
        asyncio.run(late())

    async def full() -> None:
        first = asyncio.create_task(generator.write(["a film"] * 64, Settings(100, 4), 60))
        await asyncio.sleep(0)
        try:
            await generator.write(["a film"], Settings(100, 4), 60)
        finally:
            first.cancel()

    kept, generator.queue_tokens = generator.queue_tokens, 8
    try:
        with pytest.raises(QueueFullError):
            asyncio.run(full())
    finally:
        generator.queue_tokens = kept
    assert eventually(lambda: generator.load.requests == 0)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_request_in_time_is_answered_beside_one_that_is_late(
    beams: int, handler: WriterHandler
) -> None:
    """Both are in one batch, whose other rows end when the late one does."""
    generator, settings = handler.generator, Settings(120, beams)

    async def both() -> tuple[Any, Any]:
        late = generator.write(["a dull film"] * 4, settings, 0.05)
        begin = time.monotonic()
        found = await asyncio.gather(
            late, generator.write(["a superb film"], settings, 60), return_exceptions=True
        )
        assert time.monotonic() - begin < 30
        return found[0], found[1]

    with endless(handler):
        error, written = asyncio.run(both())
    assert isinstance(error, DeadlineError)
    assert (written.texts[0].tokens, written.texts[0].finish) == (120, "length")


def test_waiting_requests_are_refused_at_their_time(
    handler: WriterHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at their turn; a client that leaves ends what is being written."""
    generator = handler.generator
    begun, go_on, write = threading.Event(), threading.Event(), generator._write
    batches = list[int]()

    def hold(rows: Any, settings: Settings) -> int:
        batches.append(len(rows))
        begun.set()
        go_on.wait(60)
        return write(rows, settings)

    monkeypatch.setattr(generator, "_write", hold)

    async def go() -> None:
        large = asyncio.create_task(generator.write(["a film"] * 128, Settings(120, 16), 600))
        assert await asyncio.to_thread(begun.wait, 60)
        with pytest.raises(DeadlineError):
            await generator.write(["a film"], Settings(4, 1), 0.1)
        assert not large.done()
        large.cancel()

    with endless(handler):
        asyncio.run(go())
        go_on.set()
    assert batches == [4]  # of 128 texts with 16 drafts each


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_rows_of_a_batch_are_reported_as_soon_as_they_are_complete(
    beams: int, handler: WriterHandler
) -> None:
    """Each with the tokens that `generate` returns for it at the end of the batch."""
    generator, texts = handler.generator, sources(24)
    given = generator._padded(generator.tokenizer(texts, truncation=True, max_length=48).input_ids)
    steps, reported = [0], dict[int, tuple[int, list[int]]]()

    def on_ended(number: int, ids: list[int]) -> None:
        assert number not in reported
        reported[number] = steps[0], ids

    def counted(*args: Any, **_: Any) -> torch.Tensor:
        steps[0] += 1
        return batch.must_end(*args)

    batch = Batch(len(texts), generator._ends, lambda _: False, on_ended)
    with batch.watching(generator._model), torch.inference_mode():
        found = generator._model.generate(
            **given, max_new_tokens=60, num_beams=beams, stopping_criteria=[counted]
        )
    early = {number: step for number, (step, _) in reported.items() if step < steps[0]}
    batch.end_all(found)
    end = min(generator._ends)
    for number, row in enumerate(found[:, 1:].tolist()):
        step, ids = reported[number]
        length = ids.index(end) + 1 if end in ids else len(row)
        assert ids[:length] == row[:length]
        if beams == 1:
            assert step == length
    assert len(set(early.values())) > 1


def test_rows_that_nobody_waits_for_are_not_reported(handler: WriterHandler) -> None:
    reported = list[int]()
    batch = Batch(3, frozenset({2}), lambda number: number == 1, lambda n, _: reported.append(n))
    stopped = batch.must_end(torch.tensor([[0, 5], [0, 2], [0, 2]]))
    assert (stopped.tolist(), reported) == ([False, True, False], [2])
    batch.end_all(torch.tensor([[0, 5, 2], [0, 2, 1], [0, 2, 1]]))
    assert reported == [2, 0]


def test_a_late_request_is_answered_with_504(url: str, handler: WriterHandler) -> None:
    headers = {"x-request-timeout-seconds": "0.05"}
    body = {"inputs": ["a film"] * 64, "max_new_tokens": 120, "num_beams": 4}
    with endless(handler):
        answer = httpx.post(f"{url}{PATH}", json=body, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")


def test_the_largest_request_is_answered(url: str) -> None:
    text = "a dull film, " * (LONGEST_TEXT // 13)
    texts = [text] * (MAX_BODY_BYTES // (len(text) + 4) - 1)
    found = ask(url, texts, max_new_tokens=2, num_beams=1)
    assert (found.status_code, found.headers["x-truncated"]) == (200, "true")
    assert len(found.json()) == len(texts)


def test_a_full_queue_refuses_before_an_input_is_tokenised(handler: WriterHandler) -> None:
    generator, long = handler.generator, ["film " * 99]

    async def go() -> None:
        large = asyncio.create_task(generator.write(["a film"] * 128, Settings(120, 16), 600))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await generator.write(long, Settings(4000, 16), 60, truncates=False)
        large.cancel()
        with pytest.raises(HttpError, match="more tokens than the model's limit of 48"):
            await generator.write(long, Settings(4, 1), 60, truncates=False)

    with endless(handler):
        asyncio.run(go())


def test_load_tests_and_python_ask_it(url: str) -> None:
    plan = load_generator.Plan(url, 0.5, concurrency=2, texts_per_request=2, answer_tokens=4)
    result = asyncio.run(load_generator.run(plan, ["a dull film", "a superb film"]))
    assert result.failed == 0 < result.requests
    endpoint = endpoint_of(swaps.TASK)
    bodies = endpoint.questions(["a dull film"] * 9, {"max_new_tokens": 2})
    assert [len(body["inputs"]) for body in bodies] == [8, 1]
    reply = httpx.post(f"{url}{PATH}", json=bodies[1]).json()
    (answer,) = endpoint.predictions(reply)
    assert isinstance(answer, Answer)
    assert answer.finish_reason == "length"


def test_the_gate_compares_texts_and_metrics(url: str, version: ModelVersion) -> None:
    endpoint = endpoint_of(swaps.TASK)

    def send(_: ModelVersion, body: Any) -> Any:
        return httpx.post(f"{url}{PATH}", json=body, timeout=60).json()

    found, texts = endpoint.compare(version, version, send)
    assert found is not None
    assert len(texts) == swaps.EVAL_ROWS
    assert all(text.startswith("a ") for text in texts)  # the endpoint adds the prefix
    assert {name: metric.value for name, metric in found.metrics.items()} == {
        "agreement": 1.0,
        "perplexity": 1.0,
        "exact_match": 0.0,
    }
    other = compare(["a", "b"], ["a", "c"], {"rougeL": 0.5}, {"rougeL": 0.25})
    assert other.metrics["agreement"].value == 0.5
    assert other.metrics["rougeL"].value == -0.25
    assert (
        other.metrics["agreement"].sentence
        == "it writes the old version's text for 50.0% of 2 inputs"
    )


schema = schemathesis.openapi.from_dict(routes.api.openapi())


@schema.include(path=PATH).parametrize()
@settings(deadline=None)
def test_made_up_requests_are_no_error_of_the_server(case: Any, url: str) -> None:
    if isinstance(case.body, dict) and "max_new_tokens" in case.body:
        most = case.body["max_new_tokens"]
        case.body["max_new_tokens"] = min(most, 8) if isinstance(most, int) else most
    answer = case.call(base_url=url)
    assert answer.status_code < 500 or answer.status_code in (503, 504)
