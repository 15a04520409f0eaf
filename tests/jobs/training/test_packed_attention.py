"""Attention to samples of packed rows one by one: what a mask gives, where it stands for one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from jobs.spec.model import LoraSpec
from jobs.spec.train import Precision
from jobs.training.corpus import load_corpus
from jobs.training.data import packing
from jobs.training.data.tokens import INPUT_IDS, SAMPLE_ENDS, TokenSet, sample_ends
from jobs.training.model import packed_attention
from jobs.training.session import Session, build_session
from jobs.training.world import World
from tests import tiny
from tests.builders import language_config, language_data

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = World(0, 1, torch.device("cpu"))


def reference(query: Any, key: Any, value: Any, ends: Any, *_: Any, **options: Any) -> Any:
    """The kernel, which GPUs alone have, by a loop over samples."""
    left, right = options["window_size"]
    assert right == 0
    made = []
    for begin, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        places = torch.arange(end - begin)
        distance = places[:, None] - places[None]
        seen = (distance >= 0) & ((distance <= left) if left >= 0 else True)
        parts = (each[begin:end].transpose(0, 1)[None] for each in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            *parts, attn_mask=seen, scale=options["scale"], enable_gqa=True
        )
        made.append(found[0].transpose(0, 1))
    return torch.cat(made)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offers the attention on CPUs, in fp32 too; returns the tokens of each call."""
    calls: list[int] = []

    def counted(query: Any, *others: Any, **options: Any) -> Any:
        calls.append(len(query))
        return reference(query, *others, **options)

    def is_offered(model: Any, precision: Precision, device: torch.device) -> bool:
        return bool(model.config._attn_implementation == packed_attention.USUAL)

    monkeypatch.setattr(packed_attention, "is_offered", is_offered)
    monkeypatch.setattr(packed_attention, "_kernel", counted)
    return calls


def session_of(questions: Path, base: str, **changes: Any) -> Session:
    data = language_data(questions, max_length=64)
    config = language_config(questions, base, data=data, **changes)
    return build_session(config, load_corpus(config), CPU)


def learnt(session: Session, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients of the loss of a batch."""
    session.model.zero_grad()
    weights = torch.ones(len(batch["input_ids"]))
    session.training.loss(session.model, batch, weights).backward()
    named = session.model.named_parameters()
    return {name: w.grad.clone() for name, w in named if w.grad is not None}


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        ("llama", None),
        ("llama", LoraSpec(type="lora", r=4, dropout=0.0)),
        ("mistral", None),  # windows
        ("gemma3_text", None),  # windows in some layers
        ("qwen2", None),
    ],
)
def test_gradients_are_those_of_a_mask(
    kind: str, adapter: LoraSpec | None, questions: Path, tmp_path: Path, anywhere: list[int]
) -> None:
    base = tiny.save(tmp_path / kind, kind, transformers.AutoModelForCausalLM)
    model = language_config(questions, base).model.model_copy(update={"adapter": adapter})
    session = session_of(questions, base, model=model, precision="fp32")
    tokens = session.corpus.train
    assert tokens.sample_slots >= packing.most_samples(tokens)
    rows = torch.arange(4)
    batch = session.engine.step.loader._store.gather(rows, 64)
    assert SAMPLE_ENDS in batch
    anywhere.clear()
    apart = learnt(session, batch)
    assert anywhere  # not the mask
    anywhere.clear()
    masked = learnt(session, {name: each for name, each in batch.items() if name != SAMPLE_ENDS})
    assert not anywhere
    for name, gradient in masked.items():
        assert torch.allclose(apart[name], gradient, atol=1e-5), name


@pytest.mark.parametrize("kind", ["gemma2", "bloom", "mamba", "falcon_h1"])
def test_models_with_another_attention_keep_their_mask(
    kind: str, questions: Path, tmp_path: Path, anywhere: list[int]
) -> None:
    """Capped scores, attention of its own, distances in the mask, no attention, and both."""
    base = tiny.save(tmp_path / kind, kind, transformers.AutoModelForCausalLM)
    session = session_of(questions, base)
    assert not session.corpus.train.sample_slots
    assert session.model.config._attn_implementation != packed_attention.NAME


def test_a_mask_that_a_model_changes_is_noticed(
    questions: Path, tmp_path: Path, anywhere: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are a mask that the kernel does not know; scores may differ less than rounding."""
    from transformers.models.llama import modeling_llama

    whole = modeling_llama.create_causal_mask

    def chunked(*arguments: Any, **options: Any) -> Any:
        mask = whole(*arguments, **options)
        if mask is not None and mask.shape[-1] > 8:
            mask = mask.clone()
            mask[..., 12, :3] = False
        return mask

    monkeypatch.setattr(modeling_llama, "create_causal_mask", chunked)
    base = tiny.save(tmp_path / "llama", "llama", transformers.AutoModelForCausalLM)
    model = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    packed_attention.use(model)
    positions = torch.arange(32)[None].repeat(2, 1) % 20
    inputs = packed_attention.inputs(sample_ends(positions, 4), 32)
    with packed_attention.masks_compared() as are_same, torch.no_grad():
        model(input_ids=torch.full((2, 32), 7), position_ids=positions, use_cache=False, **inputs)
    assert are_same == [False] * model.config.num_hidden_layers


def test_ends_are_those_of_the_samples() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 1], [0, 0, 1, 2, 3, 4]])
    assert sample_ends(positions, 6).tolist() == [0, 3, 6, 7, 12, 12, 12]
    assert sample_ends(positions, 4).tolist() == [0, 3, 6, 7, 12]


@pytest.mark.parametrize(
    ("count", "capacity", "most"), [(70, 256, 64), (200, 1000, 200), (20, 1000, 20)]
)
def test_rows_hold_no_more_samples_than_are_attended_fast(
    count: int, capacity: int, most: int
) -> None:
    """Samples of 4 tokens: 64 fill a row of 256; 200 are left together, or four rows would be."""
    ids = np.arange(4 * count, dtype=np.int32)
    offsets = np.arange(0, 4 * count + 1, 4)
    tokens = TokenSet({INPUT_IDS: ids}, offsets, np.zeros(count, np.int64), 0)
    packed = packing.pack(tokens, capacity)
    assert packing.most_samples(packed) == most
    assert sorted(packed.columns[INPUT_IDS].tolist()) == ids.tolist()


def test_rows_hold_fewer_samples_where_that_takes_hardly_more_rows() -> None:
    """Fifty full rows, and 100 short samples, which one row could hold."""
    lengths = np.array([1000] * 99 + [4] * 100)
    rows = packing.assign(lengths, 1000, packing.MOST_SAMPLES)
    assert (len(rows), max(map(len, rows))) == (101, 64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.zeros(offsets[-1], np.int32)
    tokens = TokenSet({INPUT_IDS: ids}, offsets, np.zeros(len(lengths), np.int64), 0)
    assert packing.most_samples(packing.pack(tokens, 1000)) == 64


def test_attention_that_drops_out_keeps_its_mask(
    questions: Path, tmp_path: Path, anywhere: list[int]
) -> None:
    base = tiny.save(tmp_path / "llama", "llama", transformers.AutoModelForCausalLM)
    model = language_config(questions, base).model.model_copy(update={"dropout": 0.5})
    session = session_of(questions, base, model=model)
    batch = session.engine.step.loader._store.gather(torch.arange(4), 64)
    assert SAMPLE_ENDS in batch
    anywhere.clear()
    one, other = learnt(session, batch), learnt(session, batch)
    assert not anywhere
    assert any(not one[name].equal(other[name]) for name in one)
    session.model.eval()
    learnt(session, batch)
    assert anywhere
