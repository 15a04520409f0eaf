"""Engines that write text: OpenVINO's answers are the model's, and a replica chooses among them."""

import asyncio
import importlib.machinery
import json
import shutil
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from jobs.errors import DeployError
from serve.batching.client import QueueFullError
from serve.config import ReplicaConfig
from serve.engines.generating.token_batch import CacheTooSmallError
from serve.http import app
from serve.tasks.causal_lm import engines, routes
from serve.tasks.causal_lm.answer import Piece, Settings
from serve.tasks.causal_lm.generator import Generator
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.causal_lm.openvino_engine import OpenVinoEngine, exported
from serve.tasks.causal_lm.outside_engine import Limits, OutsideJob
from serve.version import ModelVersion
from tests import tiny
from tests.builders import eventually

pytest.importorskip("openvino_genai", reason="no OpenVINO GenAI: its engine is not tested")
pytestmark = pytest.mark.filterwarnings("ignore")
DECODER = transformers.AutoModelForCausalLM
PROMPTS = [[5, 6, 7], [9] * 20, [*range(10, 60)], [3], [4, 8, 15, 16, 23, 42]]
GREEDY = Settings(24, temperature=0.0)
KINDS = ("llama", "qwen2", "gpt2", "gpt_neox", "gemma")


def folder_of(place: Path, kind: str) -> Path:
    """A random model whose answers end at different lengths."""
    torch.manual_seed(3)
    return Path(tiny.save(place / kind, kind, DECODER, initializer_range=0.2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def made(folder: Path) -> Iterator[OpenVinoEngine]:
    found = OpenVinoEngine(folder, folder.parent / "exports", Limits(120), 2)
    yield found
    found.close()


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[Generator]:
    found = Generator(folder, "AutoModelForCausalLM", "cpu", "fp32", 1, 10**9)
    yield found
    found.close()


async def answer(made: Any, ids: list[int], settings: Settings) -> tuple[str, int, str | None]:
    """The text of an answer, its tokens, and why it ended."""
    pieces = [piece async for piece in made.write(ids, settings, 60.0)]
    return "".join(piece.text for piece in pieces), pieces[-1].tokens, pieces[-1].finish


def answers(made: Any, settings: Settings) -> list[tuple[str, int, str | None]]:
    async def all_of_them() -> list[tuple[str, int, str | None]]:
        return list(await asyncio.gather(*(answer(made, ids, settings) for ids in PROMPTS)))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ignores_end": True},
        {"min_tokens": 12},
        {"most_tokens": 3},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.8, "presence_penalty": 0.4},
        {"stops": ("e", "an")},
        {"shows_special": True, "ignores_end": True},
    ],
    ids=lambda changes: ",".join(changes) or "greedy",
)
def test_answers_together_are_those_of_the_model_alone(
    made: OpenVinoEngine, ours: Generator, changes: dict[str, Any]
) -> None:
    settings = replace(GREEDY, **changes)
    assert answers(made, settings) == answers(ours, settings)
    assert made.load.requests == 0


@pytest.mark.parametrize("kind", KINDS[1:])
def test_models_of_other_kinds_answer_alike(tmp_path: Path, kind: str) -> None:
    place = folder_of(tmp_path, kind)
    ours = Generator(place, "AutoModelForCausalLM", "cpu", "fp32", 1, 10**9)
    made = OpenVinoEngine(place, tmp_path / "exports", Limits(120), 2)
    try:
        assert answers(made, GREEDY) == answers(ours, GREEDY)
    finally:
        made.close()
        ours.close()


@pytest.mark.parametrize(("kind", "why"), [("mistral", "cache"), ("mamba", "")])
def test_models_with_other_caches_are_refused(tmp_path: Path, kind: str, why: str) -> None:
    place = folder_of(tmp_path, kind)
    with pytest.raises(DeployError, match=why):
        OpenVinoEngine(place, tmp_path / "exports", Limits(120), 2)


def test_a_seed_draws_the_same_answer_again_and_none_draws_others(made: OpenVinoEngine) -> None:
    seeded = Settings(20, temperature=1.5, seed=7, ignores_end=True)
    first = answers(made, seeded)
    assert answers(made, seeded) == first
    assert answers(made, replace(seeded, seed=8)) != first
    free = replace(seeded, seed=None)
    assert answers(made, free) != answers(made, free)
    likeliest = answers(made, replace(GREEDY, most_tokens=20, ignores_end=True))
    assert answers(made, replace(seeded, top_k=1)) == likeliest
    assert answers(made, replace(seeded, min_p=1.0)) == likeliest


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that answers wait for behind their first text."""
    event, take = threading.Event(), OutsideJob.take

    def hold(self: OutsideJob, *arguments: Any) -> None:
        if self.writer._sent:
            event.wait(60)
        take(self, *arguments)

    monkeypatch.setattr(OutsideJob, "take", hold)
    yield event
    event.set()


def test_a_client_that_leaves_makes_room(made: OpenVinoEngine, go_on: threading.Event) -> None:
    async def leave() -> Piece:
        stream = made.write([5, 6], Settings(100, temperature=0.0, ignores_end=True), 60.0)
        first = await anext(stream)
        await stream.aclose()
        return first

    first = asyncio.run(leave())
    assert first.finish is None
    go_on.set()
    assert eventually(
        lambda: made.load.requests == 0 and not made._pipeline.has_non_finished_requests()
    )


def test_an_answer_ends_at_its_time_and_a_full_queue_refuses(
    folder: Path, go_on: threading.Event
) -> None:
    made = OpenVinoEngine(folder, folder.parent / "exports", Limits(120, 1, 150), 2)
    long = Settings(100, temperature=0.0, ignores_end=True)

    async def crowd() -> None:
        stream = made.write([5, 6], long, 60.0)
        await anext(stream)
        with pytest.raises(QueueFullError):
            await answer(made, [5, 6], long)
        await stream.aclose()
        with pytest.raises(CacheTooSmallError):
            await answer(made, [5] * 100, replace(long, most_tokens=10_000))

    try:
        asyncio.run(crowd())
        go_on.set()
        assert eventually(lambda: made.load.requests == 0)
    finally:
        made.close()


@pytest.fixture(scope="module")
def chats(published: ModelVersion) -> Iterator[ChatHandler]:
    found = ChatHandler(ReplicaConfig(replace(published, id="openvino"), text_engine="openvino"))
    yield found
    found.generator.close()


def asked(handler: ChatHandler, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    """The response to a conversation, or to a prompt at another path."""
    app.install(handler)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    said = {"messages": [{"role": "user", "content": "Is a superb film good?"}]}
    begin = said if path == "/v1/chat/completions" else {"prompt": "Is a superb film good?"}

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json={**begin, "temperature": 0, **fields}, timeout=60)

    try:
        return asyncio.run(post())
    finally:
        app._current.clear()


def test_the_endpoint_answers_as_with_torch(chats: ChatHandler, published: ModelVersion) -> None:
    ours = ChatHandler(ReplicaConfig(published, text_engine="torch"))
    try:
        own, found = (asked(each, max_tokens=20).json() for each in (ours, chats))
    finally:
        ours.generator.close()
    assert found["choices"] == own["choices"]
    assert found["usage"] == own["usage"]
    assert (ours.info.engine, chats.info.engine) == ("torch-fp32", "openvino-fp32")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_its_name(
    chats: ChatHandler, fields: dict[str, Any], param: str
) -> None:
    refused = asked(chats, **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, param)
    assert "openvino" in refused.json()["error"]["message"]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto chooses on a CPU as it does on a GPU, between two engines."""
    monkeypatch.setitem(engines.AUTO, "cpu", ("torch", "openvino"))


def test_auto_takes_no_engine_that_lacks_a_field(published: ModelVersion) -> None:
    assert engines.candidates(ReplicaConfig(published)) == ("torch",)


@pytest.mark.usefixtures("both")
def test_auto_measures_once_and_takes_the_fastest(
    published: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ReplicaConfig(replace(published, id="auto"))
    folder = Path(published.path)
    made = engines.start(config, folder, "fp32")
    made.close()
    kept = json.loads((Path(config.version.exports) / engines.CHOICE_FILE).read_text())
    rates = {each["engine"]: each["tokens_per_s"] for each in kept["tried"]}
    assert set(rates) == {"torch", "openvino"}
    assert kept["engine"] == made.engine == max(rates, key=rates.__getitem__)
    monkeypatch.delattr(engines, "_measure")  # it is read, and not measured again
    again = engines.start(config, folder, "fp32")
    again.close()
    assert again.engine == made.engine


@pytest.mark.usefixtures("both")
def test_an_engine_with_other_answers_is_refused_and_auto_leaves_it_out(
    published: ModelVersion, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The graph in its folder is another model's."""
    version = replace(published, id="other")
    target = Path(version.exports) / "openvino-text"
    shutil.copytree(exported(folder, folder.parent / "exports"), target)
    config, place = ReplicaConfig(version), Path(version.path)
    with pytest.raises(
        DeployError, match=r"serve\.engine openvino: .* not the model's: token 1 of"
    ):
        engines.start(replace(config, text_engine="openvino"), place, "fp32")
    made = engines.start(config, place, "fp32")
    made.close()
    assert made.engine == "torch"
    assert "auto leaves out openvino: its answers are not the model's" in caplog.text


def test_an_engine_of_other_devices_or_without_its_packages_is_refused(
    published: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(published.path)
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    config = ReplicaConfig(published, text_engine="openvino")
    with pytest.raises(DeployError, match=r"needs openvino_genai; pip install 'raywinnow\[cpu-eng"):
        engines.start(config, place, "fp32")
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    sys.modules["vllm"].__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    with pytest.raises(DeployError, match="this replica is on a CPU, where torch or openvino"):
        engines.start(replace(config, text_engine="vllm"), place, "fp32")
