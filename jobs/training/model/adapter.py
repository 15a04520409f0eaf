"""Low-rank adapters (LoRA) through peft, which takes seconds to import: only where one is used."""

import sys
from typing import TYPE_CHECKING, Any

import torch

from jobs.errors import ModelError
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.training.model.base import LoadedModel

if TYPE_CHECKING:
    import peft

HEADS = ("classifier", "score")
"""Endings of the modules that peft trains whole in a classifier."""
TASK_TYPES = {"text-classification": "SEQ_CLS", "causal-lm": "CAUSAL_LM"}


def add_adapter(loaded: LoadedModel, spec: ModelSpec) -> Any:
    """The model with fresh adapters and everything else frozen, but for what the base lacks.

    Modules that the base lacks, such as a head or a pooler, are trained whole and saved.
    """
    model, lora = loaded.model, spec.adapter
    if lora is None:
        return model
    import peft

    try:
        return peft.get_peft_model(model, _config(lora, spec, loaded))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"model.adapter.target_modules {_names(lora)} does not suit {spec.base}: {error}"
        ) from None


def has_adapter(model: Any) -> bool:
    """Whether only an adapter is trained."""
    module = sys.modules.get("peft")  # whoever made an adapter has imported it
    return module is not None and isinstance(model, module.PeftModel)


def adapter_state(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The part of a model's weights that is the adapter, under the names that peft saves."""
    import peft

    return dict(peft.get_peft_model_state_dict(model, state_dict=state))


def load_adapter_state(model: Any, state: dict[str, Any]) -> None:
    """Put saved adapter weights into the model."""
    import peft

    peft.set_peft_model_state_dict(model, state)


def _config(lora: LoraSpec, spec: ModelSpec, loaded: LoadedModel) -> "peft.LoraConfig":
    import peft

    names = lora.target_modules
    whole = [name for name in loaded.fresh if not _is_in_head(name)]
    linear = [n for n in whole if isinstance(loaded.model.get_submodule(n), torch.nn.Linear)]
    return peft.LoraConfig(
        task_type=TASK_TYPES[spec.task],
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=names if isinstance(names, str) else list(names),
        modules_to_save=whole or None,
        exclude_modules=linear or None,
    )


def _is_in_head(name: str) -> bool:
    """Whether peft trains the module whole by itself."""
    return any(part.endswith(HEADS) for part in name.split("."))


def _names(lora: LoraSpec) -> str:
    names = lora.target_modules
    return names if isinstance(names, str) else ", ".join(names)
