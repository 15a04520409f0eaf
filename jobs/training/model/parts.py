"""The parts of a model, from its embeddings up to its head, and the learning rate of each."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from jobs.errors import ModelError
from jobs.spec.model import ModelSpec
from jobs.spec.train import OptimizerSpec
from jobs.training.model.weight import Weight

EMBEDDING = "emb"
"""Part of the names of modules that hold embeddings, with their norms and projections."""
WRAPPER = "base_model.model."
"""What peft puts before the names of a model's modules."""


def with_rates(
    weights: Sequence[Weight],
    model: Any,
    heads: Sequence[str],
    optimizer: OptimizerSpec,
    spec: ModelSpec,
) -> list[Weight]:
    """Returns the weights with their learning rates and whether they belong to repeated layers.

    `heads` are endings of the names of the head's modules. Each layer has the rate of the layer
    above it times `layerwise_lr_decay`; embeddings are below the first layer of the longest stack,
    and all other weights above the last one. Stacks side by side, such as an encoder and a decoder,
    are counted separately.

    Raises:
        ModelError: if the optimizer has a rate for a head or for layers that the model lacks.
    """
    stacks = _stacks(model)
    tables = {name for name, module in model.named_modules() if _is_embedding(module)}
    is_head = {weight.name: _is_of(weight.name, heads) for weight in weights}
    if optimizer.head_lr is not None and not any(is_head.values()):
        raise ModelError(
            f"train.optimizer.head_lr: {spec.base} has no head of its own for {spec.task}; remove"
            " the field"
        )
    if optimizer.layerwise_lr_decay < 1 and not stacks:
        raise ModelError(
            f"train.optimizer.layerwise_lr_decay: {spec.base} has no repeated layers; remove the"
            " field"
        )
    found = []
    for weight in weights:
        below = _layers_above(weight.name, stacks, tables)
        rate = optimizer.layerwise_lr_decay**below
        if is_head[weight.name]:
            rate = 1.0 if optimizer.head_lr is None else optimizer.head_lr / optimizer.lr
        in_layer = _stack_of(weight.name, stacks) is not None and not _is_table(weight.name, tables)
        found.append(dataclasses.replace(weight, rate=rate, is_in_layer=in_layer))
    return found


def _stacks(model: torch.nn.Module) -> dict[str, int]:
    """Returns the number of layers of each outermost list of modules of one type, by its name."""
    found: dict[str, int] = {}
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        is_stack = isinstance(module, torch.nn.ModuleList) and len({type(m) for m in module}) == 1
        if is_stack and not is_inside and EMBEDDING not in name:
            found[name] = len(module)
    return found


def _layers_above(name: str, stacks: dict[str, int], tables: set[str]) -> int:
    """Returns the number of steps from a weight up to the weights above the last layer."""
    stack = _stack_of(name, stacks)
    if stack is not None:
        return stacks[stack] - int(name.removeprefix(f"{stack}.").partition(".")[0])
    if EMBEDDING in name or _is_table(name, tables):
        return max(stacks.values(), default=0) + 1
    return 0


def _stack_of(name: str, stacks: dict[str, int]) -> str | None:
    return next((stack for stack in stacks if name.startswith(f"{stack}.")), None)


def _is_table(name: str, tables: set[str]) -> bool:
    return name.rpartition(".")[0] in tables


def _is_embedding(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Embedding)


def _is_of(name: str, heads: Sequence[str]) -> bool:
    """Returns whether a weight belongs to a module of the head."""
    parts = name.removeprefix(WRAPPER).split(".")
    modules = [".".join(parts[:count]) for count in range(1, len(parts))]
    return any(module.endswith(tuple(heads)) for module in modules) if heads else False
