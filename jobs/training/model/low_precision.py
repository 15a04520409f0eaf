"""Weights in 16 bits: copies of those of linear layers, and bases that are saved in 16 bits."""

import copy
import json
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from jobs.spec.train import Precision
from jobs.training.model import quantized
from jobs.training.model.precision import AUTOCAST

SINGLE_FILE = "model.safetensors"
NARROW = {"BF16": torch.bfloat16, "F16": torch.float16}
"""16-bit types by their names in files of safetensors."""


def with_low_precision_copies(model: Any, precision: Precision) -> Any:
    """Returns a model with 16-bit copies of the trained weights of linear layers.

    All other tensors are shared with `model`. Autocast would cast the same weights at each forward
    pass. In 32-bit precisions it returns `model` itself.
    """
    if precision not in AUTOCAST:
        return model
    low = AUTOCAST[precision]
    shared: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(model)}
    # quantized layers hold tensors that are neither parameters nor buffers
    shared |= {id(each): each for each in model.modules() if quantized.is_quantized(each)}
    for parameter in _linear_parameters(model):
        if parameter.requires_grad:
            shared[id(parameter)] = torch.nn.Parameter(parameter.detach().to(low))
    return copy.deepcopy(model, shared)


def cast_frozen(model: Any, precision: Precision) -> None:
    """Casts frozen weights to 16 bits in place: no update needs them in fp32.

    Those of linear layers are rounded, as autocast would round them. bf16 casts the others too if
    that rounds none of them, because the base is saved so: hidden states then stay in bf16. In fp16
    they stay in fp32, because sums over layers may exceed its largest number. Trained weights are
    cast to fp32, and in 32-bit precisions all are. Quantized weights stay as they are.
    """
    low = AUTOCAST.get(precision)
    linear = {id(parameter) for parameter in _linear_parameters(model)}
    every = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    frozen = [parameter for parameter in every if not parameter.requires_grad]
    others = [parameter for parameter in frozen if id(parameter) not in linear]
    is_saved_so = low is torch.bfloat16 and all(_is_exact_in(each.data, low) for each in others)
    for parameter in every:
        is_cast = is_saved_so or (low is not None and id(parameter) in linear)
        is_low = is_cast and not parameter.requires_grad
        parameter.data = parameter.data.to(low if is_low else torch.float32)


def _is_exact_in(values: torch.Tensor, dtype: torch.dtype) -> bool:
    return values.dtype == dtype or values.to(dtype).to(values.dtype).equal(values)


def saved_dtype(place: Path | str) -> torch.dtype | None:
    """Returns the 16-bit type of all saved weights of a base; None if any has another type."""

    def found(name: str) -> str | None:
        path: str | None = transformers.utils.cached_file(
            str(place), name, _raise_exceptions_for_missing_entries=False
        )
        return path

    names: set[str] = {SINGLE_FILE}
    if found(SINGLE_FILE) is None:
        index = found(f"{SINGLE_FILE}.index.json")
        if index is None:
            return None
        names = set(json.loads(Path(index).read_bytes())["weight_map"].values())
    dtypes: set[str] = set()
    for path in map(found, names):
        if path is None:
            return None
        with safetensors.safe_open(path, "pt") as weights:
            dtypes |= {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    dtypes = {each for each in dtypes if "F" in each}  # and not numbers of positions
    return NARROW.get(dtypes.pop()) if len(dtypes) == 1 else None


def widen(model: Any, auto: Any, config: Any) -> None:
    """Gives a model the type and the buffers that it has in fp32, such as a scale of embeddings.

    Buffers that are not saved are computed again, because their 16-bit values are rounded.
    """
    model.config.dtype = torch.float32  # as the weights are published
    saved = model.state_dict().keys()
    narrow = {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and buffer.dtype != torch.float32
    }
    if not narrow:
        return
    import accelerate

    with accelerate.init_empty_weights(include_buffers=False):
        wide = dict(auto.from_config(config, dtype=torch.float32).named_buffers())
    for name, buffer in narrow.items():
        buffer.data = (buffer if name in saved else wide[name]).to(buffer.device, torch.float32)


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _linear_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Returns parameters of linear layers that no other module shares, such as an embedding."""
    elsewhere = {
        id(parameter)
        for module in model.modules()
        if not isinstance(module, torch.nn.Linear)
        for parameter in module.parameters(recurse=False)
    }
    found = {
        id(parameter): parameter
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
        for parameter in module.parameters(recurse=False)
        if id(parameter) not in elsewhere
    }
    return list(found.values())
