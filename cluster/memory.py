"""How much device memory training takes, before anything runs."""

from dataclasses import dataclass
from typing import Literal

from jobs.spec.train import Precision, Strategy
from jobs.training.config import Device
from jobs.training.model.shape import ModelShape

STATE_BYTES_PER_PARAMETER = 16
"""fp32 weights (4), gradients (4) and the two moments of AdamW (8)."""
CAST_BYTES_PER_PARAMETER = 2
"""16-bit copies of the weights that autocast keeps during a forward pass."""
ACTIVATION_BYTES = {"fp16": 34, "bf16": 34, "tf32": 66, "fp32": 66}
"""Bytes kept for the backward pass per token, layer and hidden unit, attention scores not stored.

34 for 16-bit: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models
(2022), equation 1; with 32-bit activations all of them double but the two dropout masks.
"""
CONTEXT_GIB: dict[Device, float] = {"cuda": 0.6, "cpu": 0.7}
"""CUDA context and libraries, or the Python process with torch loaded."""
LOW_SHARE, HIGH_SHARE = 0.7, 1.4
"""How far activations may lie from the formula, which ignores the allocator and fused kernels."""
FRAGMENTATION = 1.08
"""Allocator overhead in the high estimate."""

GIB = 2**30

FROZEN_BYTES_PER_PARAMETER = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}
"""Weights that an adapter leaves alone: no gradients, no moments."""
CHECKPOINTED_SHARE = 0.15
"""Of the activations, with gradient checkpointing: each layer's input, and one whole layer."""

Verdict = Literal["fits", "tight", "too big", "unknown"]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak memory of one worker in GiB."""

    low_gib: float
    expected_gib: float
    high_gib: float

    def verdict(self, memory_gib: float) -> Verdict:
        """`too big` is certain; `tight` may still run out."""
        if self.low_gib > memory_gib:
            return "too big"
        return "fits" if self.high_gib <= memory_gib else "tight"


@dataclass(frozen=True, slots=True)
class Spread:
    """What of the training state a worker holds."""

    workers: int = 1
    strategy: Strategy = "ddp"
    adapter: bool = False
    gradient_checkpointing: bool = False

    def state_bytes(self, precision: Precision) -> float:
        """Bytes per weight of the model; an adapter's own weights are not worth counting."""
        cast = CAST_BYTES_PER_PARAMETER if precision in ("fp16", "bf16") else 0
        whole = STATE_BYTES_PER_PARAMETER + cast
        if self.adapter:
            whole = FROZEN_BYTES_PER_PARAMETER[precision]
        if self.strategy == "ddp":
            return whole
        gathered = FROZEN_BYTES_PER_PARAMETER[precision] if self.strategy == "zero2" else 0
        return whole / self.workers + gathered


def estimate(
    shape: ModelShape,
    *,
    micro_batch_size: int,
    tokens: int,
    precision: Precision,
    device: Device,
    spread: Spread | None = None,
) -> MemoryEstimate:
    """Peak memory of training with AdamW for (micro_batch_size, tokens) inputs."""
    spread = spread or Spread()
    state = shape.parameters * spread.state_bytes(precision)
    per_token = ACTIVATION_BYTES[precision] * shape.layers * shape.hidden
    activations: float = micro_batch_size * tokens * per_token
    if spread.gradient_checkpointing:
        activations *= CHECKPOINTED_SHARE
    fixed = CONTEXT_GIB[device] + state / GIB
    return MemoryEstimate(
        low_gib=fixed + LOW_SHARE * activations / GIB,
        expected_gib=fixed + activations / GIB,
        high_gib=(fixed + HIGH_SHARE * activations / GIB) * FRAGMENTATION,
    )
