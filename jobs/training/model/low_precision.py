"""16-bit copies of linear layers' weights: cast once a step instead of at every use."""

import copy
from typing import Any

import torch

from jobs.spec.train import Precision
from jobs.training.model.precision import AUTOCAST


def with_low_precision_copies(model: Any, precision: Precision) -> Any:
    """A model that shares every tensor with `model` but the weights of its linear layers.

    Those are 16-bit copies, which is what autocast makes of them at each forward pass; what it
    leaves in fp32 is shared. Returns `model` itself in 32-bit precisions.
    """
    if precision not in AUTOCAST:
        return model
    low = AUTOCAST[precision]
    shared: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(model)}
    for parameter in _linear_parameters(model):
        if parameter.requires_grad:
            shared[id(parameter)] = torch.nn.Parameter(parameter.detach().to(low))
    return copy.deepcopy(model, shared)


def narrow_frozen(model: Any, precision: Precision) -> None:
    """Cast frozen weights of linear layers in place: no update needs their originals."""
    if precision in AUTOCAST:
        for parameter in _linear_parameters(model):
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(AUTOCAST[precision])


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _linear_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Of linear layers alone: weights tied to an embedding stay as they are."""
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
