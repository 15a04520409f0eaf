"""Queries NVML for the GPUs of this machine."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from cluster import catalogue


def count_gpus() -> int:
    """Returns the number of GPUs; 0 without an NVIDIA driver."""
    with library() as is_available:
        return pynvml.nvmlDeviceGetCount() if is_available else 0


def detect_sku() -> str | None:
    """Returns the SKU of the first GPU, or its product name if unknown; None without a GPU.

    For a GPU in MIG mode the name ends in "divided by MIG", which matches no SKU: Winnow does not
    use MIG slices.
    """
    with library() as is_available:
        if not is_available or not pynvml.nvmlDeviceGetCount():
            return None
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        memory_gib = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
        is_divided = bool((query(pynvml.nvmlDeviceGetMigMode, handle) or (0,))[0])
    sku = match_sku(name, memory_gib)
    return f"{sku or name} divided by MIG" if is_divided else sku


def query(function: Callable[[Any], Any], handle: Any) -> Any:
    """Returns the result of an NVML function for a GPU; None if the GPU does not support it."""
    try:
        return function(handle)
    except pynvml.NVMLError:
        return None


def match_sku(name: str, memory_gib: float) -> str | None:
    """Returns the SKU for an NVML product name such as `NVIDIA A100-SXM4-80GB`, or None.

    If a model has several sizes, the size nearest in memory is chosen.
    """
    if sku := catalogue.known(name):
        return sku.name
    model = name.removeprefix("NVIDIA ").removeprefix("Tesla ").split("-")[0].split(" ")[0]
    sizes = [sku for sku in catalogue.catalogue().values() if sku.name.split("-")[0] == model]
    return min(
        (sku.name for sku in sizes if sku.memory_gib),
        key=lambda found: abs((catalogue.catalogue()[found].memory_gib or 0) - memory_gib),
        default=None,
    )


@contextlib.contextmanager
def library() -> Iterator[bool]:
    """Open NVML for the block; yields False without an NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()
