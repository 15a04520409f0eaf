"""What an adapter leaves frozen is loaded as it is saved, and becomes what fp32 weights become."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.train import Precision
from jobs.training.model import adapter, base, low_precision
from tests import tiny

pytestmark = pytest.mark.filterwarnings("ignore")
CLASSIFIER, DECODER = "text-classification", "causal-lm"


def saved(folder: Path, kind: str, task: str, dtype: torch.dtype) -> ModelSpec:
    """A base with weights of a type, and its adapter."""
    auto = transformers.AutoModel if task == CLASSIFIER else transformers.AutoModelForCausalLM
    tiny.save(folder, kind, auto)
    auto.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return ModelSpec(base=str(folder), task=task, adapter=LoraSpec(type="lora"))


def made(spec: ModelSpec, precision: Precision = "bf16", **how: Any) -> Any:
    torch.manual_seed(0)
    model = adapter.add_adapter(base.load_model(spec, ("no", "yes"), **how), spec)
    low_precision.cast_frozen(model, precision)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("llama", DECODER),
        ("gemma3_text", DECODER),  # with a scale that 16 bits round
        ("gpt2", DECODER),
        ("bert", CLASSIFIER),
    ],
)
def test_weights_are_those_of_a_base_that_was_loaded_in_fp32(
    kind: str, task: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    spec = saved(tmp_path, kind, task, dtype)
    expected = made(spec)
    for device in (None, torch.device("cpu")):
        found = made(spec, keeps_dtype=True, device=device)
        assert found.config.dtype == torch.float32
        pairs = zip(tensors(expected), tensors(found), strict=True)
        for (name, one), (other_name, other) in pairs:
            assert (name, one.dtype) == (other_name, other.dtype)
            is_drawn = "lora_A" in name or "classifier" in name
            # what is drawn may be rounded to the type of the base
            assert (
                torch.allclose(one, other, rtol=0.01, atol=1e-4) if is_drawn else one.equal(other)
            )


def test_weights_of_several_types_are_loaded_in_fp32(tmp_path: Path) -> None:
    """The configuration says bf16, which would round the one weight that is not."""
    spec = saved(tmp_path, "llama", DECODER, torch.bfloat16)
    place = tmp_path / "model.safetensors"
    weights = safetensors.torch.load_file(place)
    weights["model.norm.weight"] = torch.rand(32)
    safetensors.torch.save_file(weights, place, metadata={"format": "pt"})
    found = made(spec, keeps_dtype=True, device=torch.device("cpu"))
    assert found.get_base_model().model.norm.weight.equal(weights["model.norm.weight"])


def test_a_classifier_of_the_same_labels_keeps_its_head(tmp_path: Path) -> None:
    spec = saved(tmp_path, "bert", CLASSIFIER, torch.bfloat16)
    auto = transformers.AutoModelForSequenceClassification
    labels = {"id2label": {0: "yes", 1: "no"}, "label2id": {"yes": 0, "no": 1}}
    whole = auto.from_pretrained(tmp_path, dtype=torch.bfloat16, **labels)
    whole.save_pretrained(tmp_path)
    how = {"keeps_dtype": True, "device": torch.device("cpu")}
    found = base.load_model(spec, ("no", "yes"), **how).model
    assert found.classifier.weight.equal(whole.classifier.weight.flip(0))


def tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def test_layers_of_a_frozen_base_hand_on_16_bits(tmp_path: Path) -> None:
    """Embeddings and norms are saved in 16 bits, so that nothing is rounded."""
    model = made(saved(tmp_path, "llama", DECODER, torch.bfloat16), keeps_dtype=True)
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    assert {weight.dtype for weight in frozen} == {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16):
        found = model(torch.arange(8)[None], output_hidden_states=True).hidden_states
    assert {each.dtype for each in found} == {torch.bfloat16}
    wide = made(saved(tmp_path, "llama", DECODER, torch.float16), "fp16", keeps_dtype=True)
    assert wide.get_base_model().model.embed_tokens.weight.dtype == torch.float32
