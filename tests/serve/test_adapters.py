"""Adapters that share a base: each answer is that of its own, whichever rows are beside it."""

import asyncio
import contextlib
import gc
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import peft
import pytest
import safetensors.torch
import torch
import transformers

from jobs.errors import DeployError, TrainingError
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.serve import AdaptersSpec
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from jobs.training.loop import train
from jobs.training.model import location
from orchestrator.records import registry
from serve.config import ReplicaConfig
from serve.engines.generating import adapters, choice
from serve.engines.generating.adapters import Adapted, Adapter, AdapterSlots, LowRank
from serve.engines.generating.cached_batch import CachedBatch
from serve.engines.generating.padded_batch import PaddedBatch
from serve.http import app
from serve.http.errors import HttpError
from serve.tasks.causal_lm import adapters as published_adapters
from serve.tasks.causal_lm.adapters import AdapterLibrary
from serve.tasks.causal_lm.answer import Settings
from serve.tasks.causal_lm.generator import Generator
from serve.tasks.causal_lm.handler import ChatHandler
from serve.tasks.registry import endpoint_of
from serve.version import ModelVersion
from tests import tiny
from tests.builders import job, language_config, language_data
from tests.hub import TOKEN, Hub, Repository, served

pytestmark = pytest.mark.filterwarnings("ignore")
DECODER = transformers.AutoModelForCausalLM
RANK, COUNT = 4, 5


def adapter_folder(place: Path, base: str, seed: int, **fields: Any) -> Path:
    """An adapter that peft saved, with weights that change every answer."""
    torch.manual_seed(seed)
    model = DECODER.from_pretrained(base)
    settings = {"r": RANK, "lora_alpha": 16, "target_modules": "all-linear", **fields}
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    adapted.save_pretrained(place)
    tiny.tokenizer().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    place = tmp_path_factory.mktemp("base") / "llama"
    return tiny.save(place, "llama", DECODER, initializer_range=0.2)


@pytest.fixture(scope="module")
def folders(base: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    some = {"target_modules": ["q_proj", "down_proj"], "r": 2}
    kinds: list[dict[str, Any]] = [{}, {}, {"use_rslora": True}, some, {}]
    return [adapter_folder(root / f"a{n}", base, n, **each) for n, each in enumerate(kinds)]


@pytest.fixture(scope="module")
def known(folders: list[Path]) -> list[Adapter]:
    return [published_adapters.read(each, f"a@{n}") for n, each in enumerate(folders)]


def cached(
    model: Any, *, rows: int, longest: int, adapters: AdapterSlots | None
) -> tuple[Any, str]:
    """What a GPU chooses, without graphs."""
    options: dict[str, Any] = {"captures": False, "room": 20_000, "adapters": adapters}
    batch = choice.cached_batch(model, rows=rows, longest=longest, **options)
    assert choice.is_right(model, batch, adapters)
    batch.clear()
    return batch, ""


@pytest.fixture(params=["torch", "captured", "alone"])
def made(
    request: pytest.FixtureRequest,
    base: str,
    folders: list[Path],
    known: list[Adapter],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Generator]:
    """A generator with two slots for five adapters, by each kind of batch."""
    kind = request.param
    if kind == "captured":
        monkeypatch.setattr(choice, "choose", cached)
    if kind == "alone":
        monkeypatch.setattr(choice, "choose", lambda *_, **__: (None, "so that one is written"))
    adapted = Adapted(base, known[0], 2, RANK)
    found = Generator(
        folders[0], "AutoModelForCausalLM", "cpu", "fp32", 1, 10**9, batch_rows=8, adapted=adapted
    )
    yield found
    found.close()
    assert found.engine == ("torch" if kind == "alone" else kind)


async def text_of(made: Generator, ids: list[int], adapter: Adapter | None) -> str:
    pieces = [piece async for piece in made.write(ids, Settings(12, temperature=0), 60, adapter)]
    return "".join(piece.text for piece in pieces)


def expected_of(base: str, folder: Path | None, ids: list[int]) -> str:
    """What transformers and peft write."""
    model = DECODER.from_pretrained(base).eval()
    if folder is not None:
        model = peft.PeftModel.from_pretrained(model, folder).eval()
    given = torch.tensor([ids])
    found = model.generate(
        input_ids=given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=12,
        pad_token_id=0,
    )[0, len(ids) :]
    text = str(tiny.tokenizer().decode(found, skip_special_tokens=True))
    return text.rstrip("\ufffd")  # the start of a character is not sent


def test_mixed_answers_are_those_of_peft(
    made: Generator, base: str, folders: list[Path], known: list[Adapter]
) -> None:
    """More adapters than slots, and rows without one, come and go in one batch."""
    draw = random.Random(0)
    places: list[Path | None] = [*folders, None]
    asked = [(draw.randrange(len(places)), draw.randrange(1, 30)) for _ in range(30)]
    prompts = [[draw.randrange(3, tiny.VOCABULARY) for _ in range(size)] for _, size in asked]

    async def all_of() -> list[str]:
        return await asyncio.gather(
            *(
                text_of(made, ids, known[which] if which < COUNT else None)
                for (which, _), ids in zip(asked, prompts, strict=True)
            )
        )

    found = asyncio.run(all_of())
    wanted = [
        expected_of(base, places[which], ids)
        for (which, _), ids in zip(asked, prompts, strict=True)
    ]
    assert found == wanted
    own = [expected_of(base, place, prompts[0]) for place in places]
    assert len(set(own)) > COUNT - 1, "the adapters do not differ"
    assert made.slots is not None
    assert made.slots.loads >= COUNT


def test_a_batch_that_fails_leaves_the_slots_to_the_next_kind(
    base: str, known: list[Adapter]
) -> None:
    """The mask of another form of rows would make any other batch fail too."""
    model = DECODER.from_pretrained(base).eval()
    slots = AdapterSlots(model, Adapted(base, known[0], 2, RANK))
    slots.select(torch.zeros(1, 64, dtype=torch.int64))
    options: dict[str, Any] = {"rows": 4, "longest": 64, "captures": False, "room": 1000}
    batch = choice.cached_batch(model, **options, adapters=slots)
    assert choice.is_right(model, batch, slots)
    slots.select(torch.zeros(1, 64, dtype=torch.int64))
    model.set_attn_implementation("sdpa")
    assert choice.padded_room(model, slots) > 0


def test_a_beginning_is_not_taken_over_from_another_adapter(
    base: str, known: list[Adapter]
) -> None:
    model = DECODER.from_pretrained(base).eval()
    slots = AdapterSlots(model, Adapted(base, known[0], 2, RANK))
    batch = choice.cached_batch(
        model, rows=4, longest=300, captures=False, room=3000, adapters=slots
    )
    draw = random.Random(0)
    ids = [draw.randrange(3, tiny.VOCABULARY) for _ in range(100)]  # more positions are not there
    long = ids * 2
    held = [slots.hold(each) for each in known[:2]]
    found, taken = [], []
    with torch.inference_mode():
        for each in (held[0], held[1], held[0], None):
            prompt = batch.begin(long, 220, each)
            assert prompt is not None
            complete, logits = batch.read([prompt])
            assert complete == [prompt]
            found.append(logits[0])
            taken.append(prompt.taken_over)
    assert [bool(count) for count in taken] == [False, False, True, False]
    assert torch.allclose(found[0], found[2], atol=1e-5)
    assert not torch.allclose(found[0], found[1], atol=0.1)
    assert not torch.allclose(found[0], found[3], atol=0.1)


@pytest.mark.parametrize("kind", ["gpt2", "mistral", "phi3", "qwen3", "olmo2"])
def test_other_architectures_take_adapters(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    place = tiny.save(tmp_path / "base", kind, DECODER, initializer_range=0.1)
    folder = adapter_folder(tmp_path / "adapter", place, 1)
    model = DECODER.from_pretrained(place).eval()
    slots = AdapterSlots(model, Adapted(place, published_adapters.read(folder, "a@1"), 3, RANK))
    assert choice.reason_for_one_by_one(model, slots) == ""
    assert choice.is_right(model, PaddedBatch(model, 1000, slots), slots)
    batch = choice.cached_batch(
        model, rows=4, longest=64, captures=False, room=1000, adapters=slots
    )
    assert isinstance(batch, CachedBatch)
    assert choice.is_right(model, batch, slots)


def test_layers_that_see_all_rows_as_one_are_written_alone(tmp_path: Path) -> None:
    place = tiny.save(tmp_path / "base", "opt", DECODER, initializer_range=0.1)
    folder = adapter_folder(tmp_path / "adapter", place, 1)
    first = published_adapters.read(folder, "a@1")
    made = Generator(
        folder,
        "AutoModelForCausalLM",
        "cpu",
        "fp32",
        1,
        10**9,
        adapted=Adapted(place, first, 3, RANK),
    )
    found = [asyncio.run(text_of(made, [5, 6, 7, 8], each)) for each in (first, None)]
    made.close()
    assert found == [expected_of(place, each, [5, 6, 7, 8]) for each in (folder, None)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_take_adapters_that_come_later(tmp_path: Path) -> None:
    """A graph reads its slots anew: an adapter that was loaded after the capture is right too."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "head_dim": 64}
    place = tiny.save(tmp_path / "base", "llama", DECODER, initializer_range=0.05, **sizes)
    known = [
        published_adapters.read(adapter_folder(tmp_path / f"{n}", place, n), f"a@{n}")
        for n in range(3)
    ]
    model = DECODER.from_pretrained(place, dtype=torch.bfloat16).to("cuda").eval()
    slots = AdapterSlots(model, Adapted(place, known[0], 2, RANK))
    batch, reason = choice.choose(model, rows=8, longest=128, adapters=slots)
    assert reason == ""
    assert isinstance(batch, CachedBatch)
    for each in known[1:]:
        held = slots.hold(each)
        assert held is not None
        slots.release(held)
        assert choice.is_right(model, batch, slots)
        batch.clear()
    assert [each.name for each in slots.loaded] == ["a@2", "a@1"]


def test_adapters_that_mix_rows_up_are_noticed(
    base: str, known: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DECODER.from_pretrained(base).eval()
    slots = AdapterSlots(model, Adapted(base, known[0], 2, RANK))
    select = AdapterSlots.select

    def first_for_all(self: AdapterSlots, found: torch.Tensor) -> None:
        select(self, found[:1].expand_as(found))

    monkeypatch.setattr(AdapterSlots, "select", first_for_all)
    assert "change each other" in choice.reason_for_one_by_one(model, slots)


def test_a_slot_that_rows_hold_is_not_taken(base: str, known: list[Adapter]) -> None:
    slots = AdapterSlots(DECODER.from_pretrained(base), Adapted(base, known[0], 2, RANK))
    first, second = slots.hold(known[0]), slots.hold(known[1])
    assert first is not None
    assert second is not None
    assert slots.hold(known[2]) is None
    assert slots.hold(known[0]) == first
    slots.release(first)
    assert slots.hold(known[2]) is None, "it is still held once"
    slots.release(first)
    third = slots.hold(known[2])
    assert third is not None
    assert third.slot == first.slot
    assert slots.hold(known[1]) == second
    assert [each.name for each in slots.loaded] == ["a@2", "a@1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "is not of plain low rank: use_dora"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"modules_to_save": ["embed_tokens"]}, "is not of plain low rank: modules_to_save"),
    ],
)
def test_an_adapter_that_is_more_than_low_rank_is_refused(
    change: Any, message: str, base: str, tmp_path: Path
) -> None:
    folder = adapter_folder(tmp_path / "a", base, 1, **change)
    with pytest.raises(adapters.UnsuitableAdapterError, match=message):
        AdapterSlots(
            DECODER.from_pretrained(base),
            Adapted(base, published_adapters.read(folder, "a@1"), 2, RANK),
        )


def test_slots_refuse_what_is_larger_than_they_are(base: str, known: list[Adapter]) -> None:
    slots = AdapterSlots(DECODER.from_pretrained(base), Adapted(base, known[3], 2, 2))
    with pytest.raises(adapters.UnsuitableAdapterError, match=r"changes model\.layers"):
        slots.check(known[0])
    (name, low), *_ = known[3].layers.items()
    with pytest.raises(adapters.UnsuitableAdapterError, match="has rank 3; adapters here have 2"):
        slots.check(Adapter("a@9", {name: LowRank(low.down[[0, 0, 0]], low.up[:, [0, 0, 0]])}))
    with pytest.raises(adapters.UnsuitableAdapterError, match="inputs and outputs"):
        slots.check(Adapter("a@9", {name: LowRank(low.down[:, 1:], low.up)}))


@pytest.fixture(scope="module")
def versions(
    questions: Path, tiny_llama: str, tmp_path_factory: pytest.TempPathFactory
) -> list[ModelVersion]:
    """Two adapters of one base that jobs trained and published, and one of another name."""
    folder = tmp_path_factory.mktemp("storage")
    return trained(
        tiny_llama, questions, folder, (3e-3, "support"), (1e-2, "support"), (3e-2, "sales")
    )


def trained(
    base: str, questions: Path, folder: Path, *each: tuple[float, str]
) -> list[ModelVersion]:
    """Published adapters of a base, each with a learning rate and a name."""
    data = language_data(questions, prompt=None, response=None, messages="messages")
    found = []
    for lr, name in each:
        model = ModelSpec(
            base=base,
            task="causal-lm",
            adapter=LoraSpec(type="lora", r=RANK, dropout=0.0, merge=False),
        )
        config = language_config(questions, base, data=data, epochs=6.0)
        optimizer = config.optimizer.model_copy(update={"lr": lr})
        config = replace(config, model=model, optimizer=optimizer)
        reference = train(config, lambda _: None, folder / f"checkpoints-{lr}")
        spec = job(data__max_length=64, name=name).model_copy(update={"model": model})
        storage = open_storage(folder)
        found.append(registry.publish(spec, reference, (), run_id=f"r{lr}", storage=storage))
    return found


@pytest.fixture(scope="module")
def server(versions: list[ModelVersion]) -> Iterator[ChatHandler]:
    config = ReplicaConfig(versions[0], adapters=AdaptersSpec(slots=1, models=("sal*",)))
    found = endpoint_of("causal-lm").load(config)
    assert isinstance(found, ChatHandler)
    yield found
    found.generator.close()


@pytest.fixture
def client(server: ChatHandler) -> Iterator[httpx.AsyncClient]:
    from serve.tasks.causal_lm import routes

    app.install(server)
    transport = httpx.ASGITransport(app.guarded(routes.api), raise_app_exceptions=False)
    yield httpx.AsyncClient(transport=transport, base_url="http://test")
    app._current.clear()


def ask(client: httpx.AsyncClient, *models: str | None) -> list[httpx.Response]:
    """Answers to one question by several models, all at once."""

    async def all_of() -> list[httpx.Response]:
        body = {"messages": [{"role": "user", "content": "Is a superb film good?"}]}
        more = {"temperature": 0, "max_tokens": 12}
        return await asyncio.gather(
            *(
                client.post("/v1/chat/completions", json={**body, **more, "model": model})
                for model in models
            )
        )

    return asyncio.run(all_of())


def text_by_peft(version: ModelVersion) -> str:
    """What the folder's model card loads writes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    model = peft.AutoPeftModelForCausalLM.from_pretrained(version.path).eval()
    asked = [{"role": "user", "content": "Is a superb film good?"}]
    given = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    found = model.generate(**given, do_sample=False, max_new_tokens=12, pad_token_id=0)
    text = tokenizer.decode(found[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return str(text)


def test_a_request_names_its_adapter(
    client: httpx.AsyncClient, versions: list[ModelVersion]
) -> None:
    names = [f"{each.name}@{each.id}" for each in versions]
    found = ask(client, None, versions[0].name, *names, *names[::-1])
    assert [each.status_code for each in found] == [200] * 8
    own = [text_by_peft(each) for each in versions]
    texts = [each.json()["choices"][0]["message"]["content"] for each in found]
    assert texts == [own[0], own[0], *own, *own[::-1]]
    assert len(set(own)) > 1
    said = [each.json()["model"] for each in found]
    assert said == ["support", "support", *names, *names[::-1]]
    ids = [each.id for each in versions]
    assert [each.headers["x-model-version"] for each in found] == [
        *(ids[0], ids[0]),
        *ids,
        *ids[::-1],
    ]
    listed = asyncio.run(client.get("/v1/models")).json()["data"]
    assert [each["id"] for each in listed] == ["support", *sorted(names)]


def test_an_adapter_that_cannot_be_asked_for_is_not_found(
    client: httpx.AsyncClient, versions: list[ModelVersion], tmp_path: Path
) -> None:
    storage = Path(versions[0].path).parent.parent

    def changed(identity: str, name: str = "support", **details: Any) -> str:
        """A copy of a version with another manifest."""
        place = storage / name / identity
        shutil.copytree(versions[1].path, place)
        known = manifest.read(place)
        (place / manifest.MANIFEST).unlink()
        if "tokenizer" in details:
            text = json.loads((place / "tokenizer.json").read_text())
            text["added_tokens"] = text["added_tokens"][:-1]
            (place / "tokenizer.json").write_text(json.dumps(text))
        details = {**known, **details}
        manifest.write(place, {k: v for k, v in details.items() if k not in ("files", "sha256")})
        return f"{name}@{identity}"

    damaged = changed("00000000000d")
    (storage / "support" / "00000000000d" / published_adapters.WEIGHTS).write_bytes(b"?")
    cases = {
        "support@latest": "write name@id",
        "support@000000000000": "it is not published here",
        "../support@000000000000": "write name@id",
        changed("00000000000a", "other"): "serve.adapters.models does not have this name",
        changed("00000000000b", base="another"): "has another base",
        changed("00000000000c", tokenizer=True): "has another tokenizer.json",
        changed("00000000000e", base_weights="1"): "was trained on other weights of its base than",
        damaged: "it is not published here",
        "gpt-4": "write name@id",
    }
    found = ask(client, *cases)
    for answer, (model, reason) in zip(found, cases.items(), strict=True):
        assert answer.status_code == 404, model
        error = answer.json()["error"]
        assert error["param"] == "model"
        assert reason in error["message"], model
    (again,) = ask(client, f"support@{versions[1].id}")
    assert again.status_code == 200


@pytest.fixture(scope="module")
def asked_hub() -> Iterator[Hub]:
    """A stand-in for the hub that this process asks, also where it has kept another address."""
    constants = huggingface_hub.constants
    with served() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        patch.setattr(constants, "ENDPOINT", found.url)
        template = f"{found.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        for each in gc.get_objects():
            if type(each) is huggingface_hub.HfApi:
                patch.setattr(each, "endpoint", found.url)
        yield found


@pytest.fixture
def hub(
    asked_hub: Hub, tiny_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Repository:
    """A base on the hub, and an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {path.name: path.read_bytes() for path in Path(tiny_llama).iterdir()}
    made = asked_hub.repositories["team/llama"] = Repository(private=False, files=files)
    return made


def other_weights(folder: Path) -> bytes:
    """The file of weights of a model that answers otherwise, in 16 bits."""
    weights = safetensors.torch.load((folder / location.WHOLE).read_bytes())
    other = {name: -each.bfloat16() for name, each in weights.items()}
    return safetensors.torch.save(other, {"format": "pt"})


def serve(version: ModelVersion) -> ChatHandler:
    found = endpoint_of("causal-lm").load(ReplicaConfig(version))
    assert isinstance(found, ChatHandler)
    return found


def has_weights_of(server: ChatHandler, folder: str) -> bool:
    with contextlib.closing(server.generator):
        own, wanted = server.generator._model, DECODER.from_pretrained(folder)
        one, other = (each.get_input_embeddings().weight.float() for each in (own, wanted))
        return torch.equal(one, other)


def test_an_adapter_is_served_on_the_commit_of_the_base_that_it_was_trained_on(
    hub: Repository,
    questions: Path,
    tiny_llama: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, (version,) = hub.revision, trained("team/llama", questions, tmp_path, (3e-3, "support"))
    assert peft.PeftConfig.from_pretrained(version.path).revision == first
    hub.change(**{location.WHOLE: other_weights(Path(tiny_llama))})
    shutil.rmtree(tmp_path / "cache")  # as on another machine
    assert has_weights_of(serve(version), tiny_llama)
    with monkeypatch.context() as offline:
        offline.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        assert has_weights_of(serve(version), tiny_llama)
    hub.earlier.clear()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DeployError, match=f"commit {first} of team/llama cannot be read"):
        serve(version)


@pytest.mark.parametrize("merge", [True, False])
def test_training_goes_on_with_the_commit_of_the_base_that_it_began_with(
    hub: Repository, questions: Path, tiny_llama: str, tmp_path: Path, *, merge: bool
) -> None:
    adapter = LoraSpec(type="lora", r=RANK, dropout=0.0, merge=merge)
    model = ModelSpec(base="team/llama", task="causal-lm", adapter=adapter)
    config = replace(language_config(questions, "team/llama", epochs=1.0), model=model)
    whole = train(config, lambda _: None, tmp_path / "whole")
    train(config, lambda _: None, tmp_path / "parts", lambda: True)
    hub.change(**{location.WHOLE: other_weights(Path(tiny_llama))})
    rest = train(config, lambda _: None, tmp_path / "parts")
    assert rest.step == whole.step
    assert rest.metrics == pytest.approx(whole.metrics)
    name = location.WHOLE if merge else published_adapters.WEIGHTS
    ends = [Path(each.path) / manifest.MODEL_DIR / name for each in (whole, rest)]
    one, other = (safetensors.torch.load_file(each) for each in ends)
    assert all(torch.allclose(one[key], other[key], atol=1e-6) for key in one)


def test_an_adapter_whose_base_has_other_weights_is_neither_trained_further_nor_served(
    questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    place = shutil.copytree(tiny_llama, tmp_path / "base")
    (version,) = trained(str(place), questions, tmp_path, (3e-3, "support"))
    (place / location.WHOLE).write_bytes(other_weights(place))
    with pytest.raises(DeployError, match=f"the weights of {place} have changed since the adapter"):
        serve(version)
    with pytest.raises(TrainingError, match=f"trained on weights of {place} that have changed"):
        trained(str(place), questions, tmp_path, (3e-3, "support"))
    # an adapter of an older release, whose weights nobody knows, is served; the other is not
    older = change_manifest(version, tmp_path / "models/support/00000000000f", base_weights="")
    named = AdapterLibrary(older, (), 2).named(f"support@{version.id}", lambda _: None, 30)
    with pytest.raises(HttpError, match="was trained on other weights of its base than are here"):
        asyncio.run(named)


def change_manifest(version: ModelVersion, place: Path, **details: Any) -> ModelVersion:
    """Copies a version, and changes details of its manifest."""
    shutil.copytree(version.path, place)
    known = manifest.read(place)
    (place / manifest.MANIFEST).unlink()
    kept = {key: value for key, value in known.items() if key not in ("files", "sha256")}
    manifest.write(place, {**kept, **details})
    return replace(version, id=place.name, path=str(place))


def test_an_adapter_without_its_base_is_not_served(
    versions: list[ModelVersion], tmp_path: Path
) -> None:
    lost = change_manifest(versions[0], tmp_path / "models/support/0", base="/not/there")
    with pytest.raises(DeployError, match=r"the base of the adapter support .* does not exist"):
        serve(lost)
