"""Number formats of the forward and backward pass."""

import contextlib
from contextlib import AbstractContextManager

import torch

from jobs.spec.train import Precision

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions that run matrix products in a 16-bit type and keep the weights in fp32."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context of a forward pass in a precision."""
    if precision in AUTOCAST:
        # no cache: weights have 16-bit copies already, and cached casts would outlive a captured
        # step
        return torch.autocast(device.type, AUTOCAST[precision], cache_enabled=False)
    return contextlib.nullcontext()


def set_matmul_precision(precision: Precision) -> None:
    """Allows TF32 matrix products in the precision tf32, and forbids them in all others."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
