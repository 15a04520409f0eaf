"""Distributes the model over workers: replicated (ddp) or sharded (zero2, zero3)."""

import contextlib
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from jobs.training.config import TrainingConfig
from jobs.training.model.low_precision import with_low_precision_copies
from jobs.training.model.precision import AUTOCAST
from jobs.training.model.weight import Weight
from jobs.training.world import World


def replicate(model: Any, config: TrainingConfig) -> tuple[Any, list[Weight]]:
    """Returns the model for the forward pass and its trained weights, complete on every worker."""
    compute = with_low_precision_copies(model, config.precision)
    sources = dict(compute.named_parameters())
    weights = [
        Weight(name, target, sources[name])
        for name, target in model.named_parameters()
        if target.requires_grad
    ]
    return compute, weights


def average_gradients(compute: Any, world: World) -> Any:
    """Wraps the model in PyTorch's DDP, which averages gradients over workers.

    On CPUs, DDP searches in each pass for weights that the loss does not depend on, such as
    BigBird's pooler or weights that only some rows use; otherwise it would wait for their
    gradients.
    """
    if world.device.type == "cpu":
        return DistributedDataParallel(
            compute, gradient_as_bucket_view=True, find_unused_parameters=True
        )
    # CUDA graphs can capture DDP only if it is built on a side stream
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wrapped = DistributedDataParallel(
            compute, device_ids=[world.device.index], gradient_as_bucket_view=True
        )
    torch.cuda.current_stream().wait_stream(stream)
    return wrapped


@contextlib.contextmanager
def recording_calls() -> Iterator[set[torch.nn.Module]]:
    """Records the modules whose hooks run inside the context.

    A module whose parent runs its `forward` directly is not among them.
    """
    called = set[torch.nn.Module]()
    hook = register_module_forward_pre_hook(lambda module, _: called.add(module))
    try:
        yield called
    finally:
        hook.remove()


def shard(
    model: Any, config: TrainingConfig, world: World, called: Container[torch.nn.Module]
) -> tuple[Any, list[Weight]]:
    """Shards the model over workers; returns the model and this worker's shard of each weight.

    Weights are gathered layer by layer; gradients and optimizer state stay sharded. Layers that are
    not in `called` run without hooks, so they are gathered together with the rest of the model.
    zero3 frees gathered weights after each layer's forward pass; zero2 keeps them until the
    backward pass. Frozen and trained weights may be mixed.

    Source: Rajbhandari et al., 2020, "ZeRO: Memory optimizations toward training trillion parameter
    models".
    """
    mesh = init_device_mesh(world.device.type, (world.size,))
    offloads = config.cpu_offload and world.device.type == "cuda"  # no need on CPUs
    offload = CPUOffloadPolicy() if offloads else OffloadPolicy()
    low = AUTOCAST.get(config.precision)
    settings: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": config.strategy == "zero3",
        "mp_policy": MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32),
        "offload_policy": offload,
    }
    for layer in repeated_layers(model):
        if layer in called:
            fully_shard(layer, **settings)
    fully_shard(model, **settings)
    weights = [
        Weight(name, _local(parameter), parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    return model, weights


def repeated_layers(model: Any) -> list[torch.nn.Module]:
    """Returns the transformer layers: the largest list of modules of one type."""
    stacks = [
        list(module)
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len({type(child) for child in module}) == 1
    ]
    return max(stacks, key=_size, default=[])


def is_sharded(config: TrainingConfig, world: World) -> bool:
    """Returns whether workers hold shards; a single worker always holds the whole model."""
    return config.strategy != "ddp" and world.size > 1


@contextlib.contextmanager
def gradient_sync(wrapped: Any, *, enabled: bool) -> Any:
    """Sets whether the backward pass inside the context averages gradients over workers."""
    if isinstance(wrapped, DistributedDataParallel) and not enabled:
        with wrapped.no_sync():
            yield
        return
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(enabled)
    yield


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor gathered from all shards; every worker must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_of(weight: torch.Tensor, part: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a tensor gathered from this worker's part, which is sharded as a weight is.

    Every worker must call this.
    """
    if not isinstance(weight, DTensor):
        return part
    found = DTensor.from_local(
        part.to(device),
        weight.device_mesh,
        weight.placements,
        shape=weight.shape,
        stride=weight.stride(),
    )
    return found.full_tensor()


def own_part(weight: torch.Tensor, whole: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns this worker's part of a tensor, sharded as a weight is."""
    if not isinstance(weight, DTensor):
        return whole
    return distribute_tensor(whole.to(device), weight.device_mesh, weight.placements).to_local()


def copy_into(own: torch.Tensor, saved: torch.Tensor, device: torch.device) -> None:
    """Copies a whole tensor into a weight, or into this worker's part of it."""
    part = own_part(own, saved, device)
    (own.to_local() if isinstance(own, DTensor) else own).copy_(part)


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local().detach()  # shares memory with the shard


def _size(stack: list[torch.nn.Module]) -> int:
    return sum(p.numel() for layer in stack for p in layer.parameters())
