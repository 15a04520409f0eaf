"""Losses of tokens in pieces: equal to those of all logits, which are never made at once."""

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.train import Strategy
from jobs.tasks.causal_lm.training import next_tokens
from jobs.training import token_losses
from jobs.training.corpus import load_corpus
from jobs.training.data.tokens import IGNORED
from jobs.training.events import Event, Stepped
from jobs.training.loop import train
from jobs.training.model import adapter, base
from jobs.training.session import build_session
from jobs.training.token_losses import WHOLE, OutputLayer
from jobs.training.world import World
from tests import tiny
from tests.builders import language_config
from tests.jobs.training import workers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
CPU = World(0, 1, torch.device("cpu"))
ROWS, WIDTH = 3, 20
DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("gpt2", {}),
    ("gemma2", {"final_logit_softcapping": 0.05}),
    ("cohere", {"logit_scale": 0.25}),
    ("granite", {"logits_scaling": 8.0}),
    ("falcon_h1", {"lm_head_multiplier": 3.0}),
]


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens in each piece."""
    monkeypatch.setattr(token_losses, "PIECE_LOGITS", 7 * tiny.VOCABULARY)


def decoder(kind: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(tiny.config_of(kind, **fields)).eval()


def batch_of() -> tuple[dict[str, Any], torch.Tensor]:
    """Rows of which half of the tokens count."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, tiny.VOCABULARY, (ROWS, WIDTH), generator=draw)
    counts = torch.rand(ids.shape, generator=draw) < 0.5
    batch = {"input_ids": ids, "loss_mask": counts.long(), "attention_mask": torch.ones_like(ids)}
    inputs, targets = next_tokens(batch)
    return dict(inputs), targets


def learnt(
    model: Any, layer: OutputLayer, inputs: Any, targets: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses, and the gradients of their weighted sum."""
    model.zero_grad()
    losses = layer.predict(model, inputs, targets).losses
    (losses * torch.linspace(0.5, 2, ROWS)[:, None]).sum().backward()
    found = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
    return losses.detach(), found


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(("kind", "fields"), DECODERS)
def test_losses_and_gradients_are_those_of_all_logits(kind: str, fields: dict[str, Any]) -> None:
    model, (inputs, targets) = decoder(kind, **fields), batch_of()
    layer = token_losses.find(model, inputs, targets)
    assert not layer.is_whole
    expected, gradients = learnt(model, WHOLE, inputs, targets)
    losses, found = learnt(model, layer, inputs, targets)
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    assert found.keys() == gradients.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, gradients[name], atol=1e-5, rtol=1e-4)
    assert (losses[targets == IGNORED] == 0).all()


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_right_tokens_are_those_of_all_logits(kind: str) -> None:
    model, (inputs, targets) = decoder(kind), batch_of()
    targets[0, :10] = model(**inputs).logits[0, :10].argmax(dim=1)
    layer = token_losses.find(model, inputs, targets)
    expected = WHOLE.predict(model, inputs, targets, judges=True).is_right
    assert expected.sum() >= 10
    assert (layer.predict(model, inputs, targets, judges=True).is_right == expected).all()


@pytest.mark.usefixtures("pieces")
def test_no_tensor_holds_the_logits_of_all_tokens() -> None:
    """Forward and backward pass; the whole loss shows that the largest tensor is seen."""
    model, (inputs, targets) = decoder("llama"), batch_of()
    layer, logits = token_losses.find(model, inputs, targets), ROWS * WIDTH * tiny.VOCABULARY

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                self.numbers = max(self.numbers, found.numel())
            return found

    def largest(how: OutputLayer) -> int:
        with Largest() as seen:
            learnt(model, how, inputs, targets)
        return seen.numbers

    assert largest(WHOLE) == logits
    # the output layer's own weight is the largest tensor that is left
    assert largest(layer) <= max(7 * tiny.VOCABULARY, model.lm_head.weight.numel()) < logits


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("modules", [("q_proj",), ("q_proj", "lm_head")])
def test_adapters_get_the_same_gradients(modules: tuple[str, ...], tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, "llama", transformers.AutoModelForCausalLM)
    lora = LoraSpec(type="lora", r=4, dropout=0.0, target_modules=modules)
    spec = ModelSpec(base=folder, task="causal-lm", adapter=lora)
    model = adapter.add_adapter(base.load_model(spec, ()), spec).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    inputs, targets = batch_of()
    layer = token_losses.find(model, inputs, targets)
    assert not layer.is_whole
    expected, gradients = learnt(model, WHOLE, inputs, targets)
    losses, found = learnt(model, layer, inputs, targets)
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    assert found.keys() == gradients.keys()
    assert any("lm_head" in name for name in found) == ("lm_head" in modules)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, gradients[name], atol=1e-5, rtol=1e-4)


def test_a_model_that_changes_its_logits_in_its_own_way_keeps_them_whole() -> None:
    """BART adds numbers to its logits, which are 0 in most models but may be anything."""
    config = tiny.config_of("bart")
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    (inputs, targets), decoded = batch_of(), torch.full((ROWS, WIDTH), 5)
    inputs = {"input_ids": inputs["input_ids"], "decoder_input_ids": decoded}
    assert not token_losses.find(model, inputs, targets).is_whole
    changed = copy.deepcopy(model)
    changed.final_logits_bias.normal_()
    assert token_losses.find(changed, inputs, targets).is_whole


def test_an_output_layer_that_drops_out_is_not_computed_twice(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path, "llama", transformers.AutoModelForCausalLM)
    lora = LoraSpec(type="lora", r=4, dropout=0.5, target_modules=("lm_head",))
    spec = ModelSpec(base=folder, task="causal-lm", adapter=lora)
    model = adapter.add_adapter(base.load_model(spec, ()), spec)
    assert token_losses.find(model, *batch_of()).is_whole


@pytest.mark.usefixtures("pieces")
def test_a_static_step_scores_as_many_tokens_and_learns_the_same() -> None:
    model, (inputs, targets) = decoder("llama"), batch_of()
    count = int((targets != IGNORED).sum())
    assert count < ROWS * WIDTH
    static = dataclasses.replace(token_losses.find(model, inputs, targets), is_static=True)
    expected, gradients = learnt(model, WHOLE, inputs, targets)
    for layer in (static, static.bounded(count), static.bounded(count + 5)):
        losses, found = learnt(model, layer, inputs, targets)
        torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], atol=1e-5, rtol=1e-4)


def test_the_model_is_as_before_also_after_an_error() -> None:
    model, (inputs, targets) = decoder("llama"), batch_of()
    layer, before = token_losses.find(model, inputs, targets), model(**inputs).logits
    with pytest.raises(RuntimeError, match="indices"):
        layer.predict(model, {**inputs, "input_ids": inputs["input_ids"].float()}, targets)
    assert torch.equal(model(**inputs).logits, before)


def test_a_session_says_where_logits_are_whole(
    questions: Path, tiny_llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = language_config(questions, tiny_llama)
    corpus = load_corpus(config)
    assert build_session(config, corpus, CPU).remarks == ()

    forward = transformers.LlamaForCausalLM.forward

    @functools.wraps(forward)
    def changed(self: Any, **inputs: Any) -> Any:
        found = forward(self, **inputs)
        found["logits"] = found.logits + 1e-2 * found.logits**2
        return found

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", changed)
    session = build_session(config, corpus, CPU)
    assert session.remarks == (token_losses.WHOLE_REMARK,)


@pytest.mark.workers
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
def test_workers_learn_in_pieces_what_one_learns_from_all_logits(
    strategy: Strategy, questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    config = language_config(questions, tiny_llama, micro_batch_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_losses, "find", lambda *_: WHOLE)
        events: list[Event] = []
        train(dataclasses.replace(config, micro_batch_size=8), events.append)
    found = workers.run(
        dataclasses.replace(config, strategy=strategy), 2, tmp_path, prepare=few_tokens_a_piece
    )
    expected = [event.loss for event in events if isinstance(event, Stepped)]
    assert len(expected) > 3
    assert workers.losses(found) == pytest.approx(expected, abs=1e-4)


def few_tokens_a_piece() -> None:
    """Makes this worker score ten tokens in a piece."""
    token_losses.PIECE_LOGITS = 3000
