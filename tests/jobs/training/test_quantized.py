"""Adapters on bases in 4 and 8 bits: what is published is what was trained."""

import dataclasses
from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
import transformers

from cluster.memory_estimate import StateSharding, estimate
from jobs.errors import TrainingError
from jobs.spec import training_rules
from jobs.spec.model import LoraSpec, Quantization
from jobs.training.config import TrainingConfig
from jobs.training.corpus import load_corpus
from jobs.training.events import Event, Proven, Stepped
from jobs.training.flops import flops_of
from jobs.training.loop import train
from jobs.training.model import quantized
from jobs.training.model.shape import ModelShape
from jobs.training.session import build_session
from jobs.training.world import World
from tests import tiny
from tests.builders import job, language_config

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = World(0, 1, torch.device("cpu"))
KINDS: tuple[Quantization, ...] = ("nf4", "int8")


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some processors bitsandbytes lays weights out anew; here it would on every one."""
    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base") / "llama"
    fields = {"hidden_size": 64, "intermediate_size": 128}
    return tiny.save(folder, "llama", transformers.AutoModelForCausalLM, **fields)


def config_of(
    questions: Path, base: str, kind: Quantization | None, **fields: Any
) -> TrainingConfig:
    config = language_config(questions, base, precision="bf16", epochs=4.0, **fields)
    lora = LoraSpec(type="lora", r=4, dropout=0.0, quantization=kind, merge=True)
    return dataclasses.replace(config, model=config.model.model_copy(update={"adapter": lora}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_model_scores_what_training_scored(
    kind: Quantization, questions: Path, base: str, tmp_path: Path
) -> None:
    events: list[Event] = []
    reference = train(config_of(questions, base, kind), events.append, tmp_path, proves=True)
    proof = next(event for event in events if isinstance(event, Proven))
    assert (proof.refusal, proof.rows) == ("", 24)
    assert proof.difference < 0.01
    steps = [event.loss for event in events if isinstance(event, Stepped)]
    assert steps[-1] < steps[0]
    folder = Path(reference.path) / "model"
    assert "quantization" not in (folder / "config.json").read_text(encoding="utf-8")
    published = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert {weight.dtype for weight in published.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_take_fewer_bytes_and_are_near_their_own(
    kind: Quantization, questions: Path, base: str
) -> None:
    config = config_of(questions, base, kind)
    whole = build_session(config_of(questions, base, None), load_corpus(config), CPU)
    few = build_session(config, load_corpus(config), CPU)
    own = dict(whole.model.named_parameters())
    found = dict(quantized.whole_weights(few.model))
    assert len(found) == 7 * few.model.config.num_hidden_layers
    bound = 0.15 if kind == "nf4" else 0.02
    for name, weight in found.items():
        assert (weight - own[name]).norm() < bound * own[name].norm()
        held = dict(few.model.named_parameters())[name]
        assert held.nbytes * (4 if kind == "nf4" else 2) == own[name].nbytes
    assert flops_of(few) == flops_of(whole)
    layers = [
        [each for each in model.modules() if quantized.is_quantized(each)]
        for model in (few.model, few.engine.step.model)
    ]
    assert few.model is not few.engine.step.model
    # the model that is trained in 16 bits holds the same layers, and not copies
    assert len(layers[0]) == len(found)
    assert all(one is other for one, other in zip(*layers, strict=True))


@pytest.mark.parametrize("inputs", [32, 96, 64])
def test_a_layer_multiplies_by_what_is_merged_whatever_its_width(inputs: int) -> None:
    """Blocks of 64 weights do not end with rows of 32 or 96."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    own = torch.nn.Linear(64, inputs).weight.data.T.contiguous()  # (64, inputs)
    layer = bitsandbytes.nn.Linear4bit(inputs, 64, compute_dtype=torch.float32, quant_type="nf4")
    layer.load_state_dict({"weight": own, "bias": torch.arange(64.0)})
    layer.to("cpu")
    model = torch.nn.Sequential(layer)
    quantized.settle_layers(model)
    ((_, weight),) = quantized.whole_weights(model)
    assert (weight - own).norm() < 0.12 * own.norm()
    rows = torch.randn(5, inputs, requires_grad=True)
    found = model(rows)
    assert torch.allclose(found, rows @ weight.T + torch.arange(64.0), atol=1e-4)
    found.sum().backward()
    assert rows.grad is not None
    assert torch.allclose(rows.grad, weight.sum(0).expand(5, -1), atol=1e-4)


def test_an_interrupted_run_goes_on_bit_by_bit(questions: Path, base: str, tmp_path: Path) -> None:
    config = config_of(questions, base, "nf4")
    whole = train(config, lambda _: None, tmp_path / "whole")
    calls: list[int] = []

    def leaves() -> bool:
        calls.append(1)
        return len(calls) == 5

    train(config, lambda _: None, tmp_path / "parts", leaves)
    parts = train(config, lambda _: None, tmp_path / "parts")
    one, other = (Path(each.path) / "model" / "model.safetensors" for each in (whole, parts))
    assert one.read_bytes() == other.read_bytes()
    assert whole.metrics == parts.metrics


def test_without_its_package_a_run_ends_before_it_begins(
    questions: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(questions, base, "nf4")
    corpus = load_corpus(config)
    monkeypatch.setattr(quantized.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=r"pip install 'raywinnow\[quantization\]'"):
        build_session(config, corpus, CPU)


def test_a_plan_knows_that_less_memory_is_needed() -> None:
    llama = ModelShape(
        layers=32,
        hidden=4096,
        intermediate=14336,
        vocabulary=128_256,
        positions=0,
        is_gated=True,
        key_value_share=0.25,
        has_own_head=True,
        scores_vocabulary=True,
    )

    def expected(kind: Quantization | None) -> float:
        held = StateSharding(adapter=True, quantization=kind, gradient_checkpointing=True)
        return estimate(
            llama,
            micro_batch_size=1,
            tokens=2048,
            precision="bf16",
            device="cuda",
            eval_batch=1,
            sharding=held,
        ).expected_gib

    assert expected("nf4") < 12.5 < expected("int8") < expected(None) - 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__adapter__merge": False}, "set merge to true"),
        ({"train__strategy": "zero3"}, "train.strategy zero3 shards weights"),
        ({"model__task": "text-classification"}, "it is for causal-lm, preference"),
    ],
)
def test_jobs_that_cannot_be_trained_so_are_refused(changes: dict[str, Any], words: str) -> None:
    lora = {"type": "lora", "quantization": "nf4", "merge": True}
    columns = {"train": {"path": "a.jsonl"}, "eval": {"path": "b.jsonl"}}
    classifies = changes.get("model__task") == "text-classification"
    columns |= {"text": "text"} if classifies else {"messages": "messages"}
    fields: dict[str, Any] = {"model__task": "causal-lm", "model__adapter": lora, "data": columns}
    found = list(training_rules.violations(job(**{**fields, **changes})))
    assert [each.path for each in found] == [("model", "adapter", "quantization")]
    assert words in found[0].message
