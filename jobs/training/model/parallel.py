"""How the model is spread over workers: replicated (ddp) or in shards (zero2, zero3)."""

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
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from jobs.training.config import TrainingConfig
from jobs.training.model.low_precision import with_low_precision_copies
from jobs.training.model.precision import AUTOCAST
from jobs.training.model.weight import Weight
from jobs.training.world import World


def replicate(model: Any, config: TrainingConfig) -> tuple[Any, list[Weight]]:
    """The model to call and its trained weights, whole on every worker."""
    compute = with_low_precision_copies(model, config.precision)
    sources = dict(compute.named_parameters())
    weights = [
        Weight(name, target, sources[name])
        for name, target in model.named_parameters()
        if target.requires_grad
    ]
    return compute, weights


def average_gradients(compute: Any, world: World) -> Any:
    """The model behind PyTorch's DDP, which averages gradients over workers.

    On CPUs it looks in each pass for weights that the loss does not depend on, such as the pooler
    of BigBird or what only some rows use: it would wait for their gradients.
    """
    if world.device.type == "cpu":
        return DistributedDataParallel(
            compute, gradient_as_bucket_view=True, find_unused_parameters=True
        )
    # DDP that is to be captured is built off the main stream
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wrapped = DistributedDataParallel(
            compute, device_ids=[world.device.index], gradient_as_bucket_view=True
        )
    torch.cuda.current_stream().wait_stream(stream)
    return wrapped


@contextlib.contextmanager
def noting_calls() -> Iterator[set[torch.nn.Module]]:
    """The modules that are called meanwhile, as their hooks are: some are only run by `forward`."""
    called = set[torch.nn.Module]()
    hook = register_module_forward_pre_hook(lambda module, _: called.add(module))
    try:
        yield called
    finally:
        hook.remove()


def shard(
    model: Any, config: TrainingConfig, world: World, called: Container[torch.nn.Module]
) -> tuple[Any, list[Weight]]:
    """The model in shards, gathered layer by layer: gradients and optimizer state stay sharded.

    Layers that are not `called`, but run in another way, are gathered with all else at once. zero3
    drops gathered weights after each layer's forward pass; zero2 keeps them until the backward
    pass. Frozen and trained weights may be mixed.
    """
    mesh = init_device_mesh(world.device.type, (world.size,))
    offloads = config.cpu_offload and world.device.type == "cuda"  # a CPU's state is there already
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
    """The transformer layers, which hold most of the weights and are all alike."""
    stacks = [
        list(module)
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len({type(child) for child in module}) == 1
    ]
    return max(stacks, key=_size, default=[])


def is_sharded(config: TrainingConfig, world: World) -> bool:
    """Whether workers hold parts of the model; one alone holds it whole, whatever the strategy."""
    return config.strategy != "ddp" and world.size > 1


@contextlib.contextmanager
def gradient_sync(wrapped: Any, *, enabled: bool) -> Any:
    """Whether the backward pass in this context averages gradients over workers."""
    if isinstance(wrapped, DistributedDataParallel) and not enabled:
        with wrapped.no_sync():
            yield
        return
    if hasattr(wrapped, "set_requires_gradient_sync"):
        wrapped.set_requires_gradient_sync(enabled)
    yield


def full(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with all its shards; every worker must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local().detach()  # shares the shard's memory


def _size(stack: list[torch.nn.Module]) -> int:
    return sum(p.numel() for layer in stack for p in layer.parameters())
