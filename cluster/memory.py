"""How much device memory training takes, before anything runs."""

from dataclasses import dataclass
from typing import Literal

from jobs.spec.train import Precision, Strategy
from jobs.training.config import Device
from jobs.training.model.shape import ModelShape

STATE_BYTES_PER_PARAMETER = 16
"""fp32 weights (4), gradients (4) and the two moments of AdamW (8); with 16 bits the gradients and
a copy of the weights take 2 each."""
FROZEN_BYTES_PER_PARAMETER = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}
"""Weights that an adapter leaves alone, and whole weights while a shard is gathered."""
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}
ACTIVATIONS, GATED_ACTIVATIONS = 8.0, 7.5
FEED_FORWARD, GATED_FEED_FORWARD = 2.0, 4.0
"""Elements kept for the backward pass per token and layer: of attention and norms in hidden units,
and of the feed-forward layer in units of its width, twice as many where it is gated.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section
4.1, attention scores not stored; dropout masks of a byte each come on top."""
PASSING, PASSING_FEED_FORWARD = 2, 2
"""Elements of one layer besides, which no pass keeps: per token, in hidden units and in units of
the feed-forward layer's width. A backward pass holds their gradients, judging the layer itself."""
MASKS = 3
"""Dropout masks, a byte per token, layer and hidden unit each."""
WIDE_NORMS = 2
"""Layer norms give fp32 in 16-bit training too: elements per token, layer and hidden unit."""
LOGITS, JUDGED_LOGITS = 5, 8
"""fp32 copies of an output layer's scores that training and judging hold at once, as measured."""
CONTEXT_GIB: dict[Device, float] = {"cuda": 1.0, "cpu": 0.9}
"""CUDA context and libraries, or the Python process with torch loaded."""
WORKSPACE_GIB: dict[Device, float] = {"cuda": 0.9, "cpu": 0.0}
"""Matrix libraries' workspaces and the data on the device."""
SYNC_GIB: dict[Device, float] = {"cuda": 1.1, "cpu": 0.0}
"""NCCL's buffers, and what is exchanged in 16 bits."""
LOW_SHARE, HIGH_SHARE = 0.8, 1.3
"""How far activations may lie from the formula, which ignores the allocator and fused kernels."""
SURE_SHARE = 0.95
"""Of weights, moments and workspaces in the low estimate, from which a verdict is certain."""
FRAGMENTATION = 1.08
"""Allocator overhead in the high estimate."""
CHECKPOINTED_SHARE = 0.15
"""Of the activations, with gradient checkpointing: each layer's input, and one whole layer."""

GIB = 2**30

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
    cpu_offload: bool = False


def estimate(
    shape: ModelShape,
    *,
    micro_batch_size: int,
    tokens: int,
    precision: Precision,
    device: Device,
    eval_batch: int = 128,
    spread: Spread | None = None,
) -> MemoryEstimate:
    """Peak memory of training with AdamW for (micro_batch_size, tokens) inputs.

    Calibrated on H200 with bert-base and a Llama of 1.1 billion weights.
    """
    spread = spread or Spread()
    per_token = _bytes_per_token(shape, precision, spread) + _logits(shape, LOGITS)
    activations = micro_batch_size * tokens * (per_token + _passing(shape, precision))
    fixed = CONTEXT_GIB[device] + WORKSPACE_GIB[device]
    fixed += SYNC_GIB[device] if spread.workers > 1 else 0.0
    fixed += (
        _state(shape, precision, spread)
        + _judging(shape, tokens, precision, activations, eval_batch)
    ) / GIB
    return MemoryEstimate(
        low_gib=SURE_SHARE * fixed + LOW_SHARE * activations / GIB,
        expected_gib=fixed + activations / GIB,
        high_gib=(fixed + HIGH_SHARE * activations / GIB) * FRAGMENTATION,
    )


def _state(shape: ModelShape, precision: Precision, spread: Spread) -> float:
    """Bytes of weights, gradients and moments; an adapter's own weights are not worth counting."""
    element, weights = ELEMENT_BYTES[precision], shape.parameters
    if spread.adapter:
        return float(weights * FROZEN_BYTES_PER_PARAMETER[precision])
    if spread.strategy != "ddp":
        gathered = FROZEN_BYTES_PER_PARAMETER[precision] if spread.strategy == "zero2" else 0
        sharded = 0 if spread.cpu_offload else STATE_BYTES_PER_PARAMETER / spread.workers
        return float(weights * (sharded + gathered + element))
    wide = shape.embedding_parameters if element < 4 else weights  # embeddings stay fp32
    made = wide * 4 + (weights - wide) * element  # autograd's gradients
    return float(weights * STATE_BYTES_PER_PARAMETER + made)


def _bytes_per_token(shape: ModelShape, precision: Precision, spread: Spread) -> float:
    element = ELEMENT_BYTES[precision]
    if shape.is_gated:
        elements = GATED_ACTIVATIONS * shape.hidden + GATED_FEED_FORWARD * shape.intermediate
        layer = elements * element
    else:
        elements = ACTIVATIONS * shape.hidden + FEED_FORWARD * shape.intermediate
        wide = 4 * WIDE_NORMS if element < 4 else 0
        layer = elements * element + (MASKS + wide) * shape.hidden
    share = CHECKPOINTED_SHARE if spread.gradient_checkpointing else 1.0
    return shape.layers * layer * share


def _passing(shape: ModelShape, precision: Precision) -> float:
    """Bytes per token of what one layer holds for a moment."""
    if shape.is_gated:
        return 0.0  # its constants were measured with it
    elements = PASSING * shape.hidden + PASSING_FEED_FORWARD * shape.intermediate
    return float(elements * ELEMENT_BYTES[precision])


def _judging(
    shape: ModelShape, tokens: int, precision: Precision, activations: float, eval_batch: int
) -> float:
    """Bytes that judging takes beside training."""
    if shape.scores_vocabulary:
        scores = eval_batch * tokens * _logits(shape, JUDGED_LOGITS)
        return max(0.0, scores - activations)
    return eval_batch * tokens * _passing(shape, precision)


def _logits(shape: ModelShape, copies: int) -> float:
    """Bytes per token of a causal model's scores."""
    return float(copies * 4 * shape.vocabulary) if shape.scores_vocabulary else 0.0
