"""Low-rank adapters (LoRA) with peft, which is imported only for jobs with one: it takes seconds.

Source: Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.nn.parallel import DistributedDataParallel

from jobs.errors import listed
from jobs.spec import task_registry
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.training.model.base import LoadedModel
from jobs.training.model.library import as_model_error
from jobs.training.task import training_of

if TYPE_CHECKING:
    import peft

KNOWN_HEADS = ("classifier", "score")
"""Last names of modules that peft treats as heads in every task."""


def add_adapter(loaded: LoadedModel, spec: ModelSpec) -> Any:
    """Adds adapters to the model and freezes all other weights of the base.

    Modules that the base lacks, such as a head or a pooler, are trained and saved as a whole.

    Raises:
        ModelError: if `target_modules` does not match the model.
    """
    model, lora = loaded.model, spec.adapter
    if lora is None:
        return model
    import peft

    clause = f"model.adapter.target_modules {_names(lora)} does not suit {spec.base}"
    from jobs.training.model import lora_linear

    with as_model_error(f"{clause}, whose linear layers are {listed(_linear(model))}"):
        adapted = peft.get_peft_model(model, _config(lora, spec, loaded))
    lora_linear.use(adapted)
    return adapted


def has_adapter(model: Any) -> bool:
    """Returns whether the model is trained through an adapter."""
    module = sys.modules.get("peft")  # not imported here: a model with an adapter has imported it
    return module is not None and isinstance(model, module.PeftModel)


def unwrapped(model: Any) -> Any:
    """Returns the model of transformers inside of PyTorch's DDP and of adapters."""
    inner = without_ddp(model)
    return inner.get_base_model() if has_adapter(inner) else inner


def without_ddp(model: Any) -> Any:
    """Returns the model, with its adapter, inside of PyTorch's DDP."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def adapter_state(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the adapter's part of a model's weights, under the names of peft's files."""
    import peft

    return dict(peft.get_peft_model_state_dict(model, state_dict=state))


def load_adapter_state(model: Any, state: dict[str, Any]) -> None:
    """Loads saved adapter weights into the model."""
    import peft

    peft.set_peft_model_state_dict(model, state)


def _config(lora: LoraSpec, spec: ModelSpec, loaded: LoadedModel) -> "peft.LoraConfig":
    import peft

    names = lora.target_modules
    heads = training_of(spec.task).heads  # peft trains them as a whole, and cannot adapt them too
    whole = _outermost([name for name in loaded.fresh if not _is_in(name, KNOWN_HEADS)])
    kept = (*whole, *heads)
    saved = [n for n, _ in loaded.model.named_modules() if n.endswith(kept)]
    inside = [n for n, _ in loaded.model.named_modules() if _is_inside(n, saved)]
    return peft.LoraConfig(
        revision=loaded.revision or None,
        task_type=task_registry.find(spec.task).adapter_type or None,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=names if isinstance(names, str) else list(names),
        modules_to_save=whole or None,
        exclude_modules=inside or None,
    )


def _outermost(names: Sequence[str]) -> list[str]:
    """Returns the modules that no other one contains: peft saves a module with its children."""
    return [name for name in names if not _is_inside(name, [n for n in names if n != name])]


def _is_inside(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _linear(model: Any) -> list[str]:
    """Returns the last names of linear layers, which `target_modules` may hold."""
    kinds = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    found = (name for name, module in model.named_modules() if isinstance(module, kinds))
    return sorted({name.rpartition(".")[2] for name in found})


def _is_in(name: str, heads: tuple[str, ...]) -> bool:
    """Returns whether a module is in one of the heads, which peft trains as a whole by itself."""
    return any(part.endswith(heads) for part in name.split("."))


def _names(lora: LoraSpec) -> str:
    names = lora.target_modules
    return names if isinstance(names, str) else f"[{listed(names)}]"
