"""Finds the GPUs of this machine and their SKU through NVML."""

import pynvml

from cluster import catalogue
from jobs.nvml import library, query


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
    found = match_sku(name, memory_gib) or name
    return f"{found} divided by MIG" if is_divided else found


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
