"""Queries NVML, NVIDIA's library for the state of GPUs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

SLOWDOWNS = {
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat, by the hardware",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "the power supply",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "the hardware",
}
"""Bits of NVML's reasons for a lower clock, other than the power limit, and their words."""


@contextlib.contextmanager
def library() -> Iterator[bool]:
    """Opens NVML for the block; yields False without an NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def query(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of an NVML function; None if it fails or the GPU does not support it."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def slowdowns(handle: Any) -> tuple[str, ...] | None:
    """Returns why the clock of a GPU is reduced now; None if NVML does not report it."""
    reasons = query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if reasons is None:
        return None
    return tuple(words for bit, words in SLOWDOWNS.items() if reasons & bit)
