"""Adapters in one pass: what peft's own layers compute, and what they do besides."""

import copy
from typing import Any

import peft
import pytest
import torch
import transformers

from jobs.training.model import lora_linear
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore")


def adapted(dropout: float = 0.0, **fields: Any) -> Any:
    """A tiny Llama whose adapter is not at its start."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(tiny.config_of("llama"))
    settings = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", **fields}
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=dropout, **settings)
    model = peft.get_peft_model(model, config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    return model


def learnt(model: Any, dtype: torch.dtype | None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits, and the gradients of the adapter."""
    model.zero_grad()
    ids = torch.arange(12).view(2, 6)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        logits = model(ids, use_cache=False).logits.float()
    logits.square().mean().backward()
    return logits.detach(), [w.grad.clone() for w in model.parameters() if w.grad is not None]


def layers(model: Any) -> int:
    return sum(isinstance(module, lora_linear.LoraLinear) for module in model.modules())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_logits_and_gradients_are_those_of_peft(dtype: torch.dtype | None) -> None:
    """In 16 bits they are as near to those of 32 bits as peft's are."""
    model, plain = adapted(), adapted()
    lora_linear.use(model)
    assert layers(model) == 7 * model.config.num_hidden_layers
    found, theirs, exact = learnt(model, dtype), learnt(plain, dtype), learnt(plain, None)
    assert len(found[1]) == len(theirs[1]) == 2 * layers(model)
    every = ([each[0], *each[1]] for each in (found, theirs, exact))
    for ours, other, expected in zip(*every, strict=True):
        bound = 1.5 * (other - expected).norm() + 1e-3 * expected.norm()
        assert (ours - expected).norm() <= bound


def test_a_copy_has_weights_of_its_own() -> None:
    model = adapted()
    lora_linear.use(model)
    other = copy.deepcopy(model)
    before = learnt(model, None)[0]
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2)
    assert learnt(model, None)[0].equal(before)
    assert not learnt(other, None)[0].equal(before)


def test_an_adapter_is_dropped_out_disabled_and_merged_as_by_peft() -> None:
    model, plain = adapted(dropout=0.5), adapted(dropout=0.5)
    lora_linear.use(model)
    found = []
    for each in (model, plain):
        torch.manual_seed(1)
        dropped = learnt(each.train(), None)[0]
        with each.disable_adapter():
            base = each(torch.arange(12).view(2, 6)).logits.detach()
        whole = learnt(each.eval(), None)[0]
        merged = each.merge_and_unload()(torch.arange(12).view(2, 6)).logits
        assert torch.allclose(whole, merged, atol=1e-4)
        assert not torch.allclose(whole, dropped, atol=1e-2)
        assert not torch.allclose(whole, base, atol=1e-2)
        found.append((dropped, base, whole))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("fields", [{"use_dora": True}, {"lora_bias": True}])
def test_other_adapters_stay_peft_s_own(fields: dict[str, Any]) -> None:
    model = adapted(**fields)
    lora_linear.use(model)
    assert not layers(model)
