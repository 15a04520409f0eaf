"""Number formats of the forward and backward pass."""

import contextlib
from contextlib import AbstractContextManager

import torch

from jobs.spec.train import Precision

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions that run matrix products in a smaller type, with weights kept in fp32."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Context for a forward pass in the given precision."""
    if precision in AUTOCAST:
        # weights have 16-bit copies already, and cached casts would outlive a captured step
        return torch.autocast(device.type, AUTOCAST[precision], cache_enabled=False)
    return contextlib.nullcontext()


def set_matmul_precision(precision: Precision) -> None:
    """Allow TF32 matrix products for tf32 alone."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
