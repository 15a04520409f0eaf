"""16-bit copies of the weights of linear layers: cast once per step instead of at every use."""

import copy
from typing import Any

import torch

from jobs.spec.train import Precision
from jobs.training.model.precision import AUTOCAST


def with_low_precision_copies(model: Any, precision: Precision) -> Any:
    """Returns a model with 16-bit copies of the trained weights of linear layers.

    All other tensors are shared with `model`. Autocast would cast the same weights at each forward
    pass. In 32-bit precisions it returns `model` itself.
    """
    if precision not in AUTOCAST:
        return model
    low = AUTOCAST[precision]
    shared: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(model)}
    for parameter in _linear_parameters(model):
        if parameter.requires_grad:
            shared[id(parameter)] = torch.nn.Parameter(parameter.detach().to(low))
    return copy.deepcopy(model, shared)


def cast_frozen(model: Any, precision: Precision) -> None:
    """Casts frozen weights of linear layers to 16 bits in place: no update needs them in fp32.

    All other weights are cast to fp32. In 32-bit precisions nothing is in 16 bits.
    """
    low = AUTOCAST.get(precision)
    linear = {id(parameter) for parameter in _linear_parameters(model)} if low else set[int]()
    for parameter in model.parameters():
        is_low = id(parameter) in linear and not parameter.requires_grad
        parameter.data = parameter.data.to(low if is_low else torch.float32)


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
