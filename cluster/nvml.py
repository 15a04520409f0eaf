"""The GPU model of the machine this runs on, through NVML."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from cluster import catalogue


def count_gpus() -> int:
    """How many GPUs the driver shows; 0 without a driver."""
    with library() as is_there:
        return pynvml.nvmlDeviceGetCount() if is_there else 0


def detect_sku() -> str | None:
    """Name of the first GPU's SKU, told apart by model and memory; None without a known GPU.

    A GPU that is divided by MIG is none of the catalogue's: nothing is placed on it.
    """
    with library() as is_there:
        if not is_there or not pynvml.nvmlDeviceGetCount():
            return None
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        memory_gib = pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
        is_divided = bool((ask(pynvml.nvmlDeviceGetMigMode, handle) or (0,))[0])
    found = match_sku(name, memory_gib)
    return f"{found or name} divided by MIG" if is_divided else found


def ask(question: Callable[[Any], Any], handle: Any) -> Any:
    """An answer of NVML; None where this GPU or machine does not give it."""
    try:
        return question(handle)
    except pynvml.NVMLError:
        return None


def match_sku(name: str, memory_gib: float) -> str | None:
    """The SKU for an NVML product name, with the memory deciding between sizes of one model.

    Driver names read like `NVIDIA A100-SXM4-80GB` or `Tesla V100-PCIE-32GB`.
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
    """NVML while it is open; False where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()
