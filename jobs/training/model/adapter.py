"""Low-rank adapters (LoRA) through peft."""

from typing import Any

import peft

from jobs.errors import ModelError
from jobs.spec.model import LoraSpec, ModelSpec

TASK_TYPES = {"text-classification": "SEQ_CLS", "causal-lm": "CAUSAL_LM"}


def add_adapter(model: Any, spec: ModelSpec) -> Any:
    """The model with fresh adapters and everything else frozen, but for a classifier's head."""
    lora = spec.adapter
    if lora is None:
        return model
    try:
        return peft.get_peft_model(model, _config(lora, spec))
    except ValueError as error:
        raise ModelError(
            f"model.adapter.target_modules {_names(lora)} does not suit {spec.base}: {error}"
        ) from None


def has_adapter(model: Any) -> bool:
    """Whether only an adapter is trained."""
    return isinstance(model, peft.PeftModel)


def adapter_state(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The part of a model's weights that is the adapter, under the names that peft saves."""
    return dict(peft.get_peft_model_state_dict(model, state_dict=state))


def load_adapter_state(model: Any, state: dict[str, Any]) -> None:
    """Put saved adapter weights into the model."""
    peft.set_peft_model_state_dict(model, state)


def _config(lora: LoraSpec, spec: ModelSpec) -> peft.LoraConfig:
    names = lora.target_modules
    return peft.LoraConfig(
        task_type=TASK_TYPES[spec.task],
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=names if isinstance(names, str) else list(names),
    )


def _names(lora: LoraSpec) -> str:
    names = lora.target_modules
    return names if isinstance(names, str) else ", ".join(names)
