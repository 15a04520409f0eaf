"""Estimates the device memory of training from the model's shape."""

from dataclasses import dataclass, field
from typing import Literal

from jobs.spec.model import Quantization
from jobs.spec.train import OptimizerSpec, Precision, Strategy
from jobs.training.config import Device
from jobs.training.model.shape import EVAL_PIECE_LOGITS, PIECE_LOGITS, ModelShape

STATE_BYTES_PER_PARAMETER = 8
"""fp32 weights (4) and gradients (4). 16-bit training has a copy of the weights and gradients
besides, with 2 bytes each."""
MOMENT_BYTES = 4
"""One fp32 value that an optimizer keeps for a weight: AdamW keeps two, momentum is one, and
Adafactor's rows and columns are negligible."""
FROZEN_BYTES_PER_PARAMETER = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}
"""Weights that an adapter does not train, and whole weights while shards are gathered."""
QUANTIZED_BYTES_PER_PARAMETER: dict[Quantization, float] = {"nf4": 0.517, "int8": 1.001}
"""With a scale for each 64 weights, in 8 bits, and for each row. Embeddings and output layers stay
whole, and one layer's weight is made whole at a time."""
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}
ACTIVATIONS, FEED_FORWARD = 8.0, 2.0
"""Activations kept for the backward pass per token and layer: for attention and norms in multiples
of the hidden size, for the feed-forward layer in multiples of its width.

Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022),
section 4.1, without stored attention scores and without the dropout masks (`MASKS`)."""
GATED, RECOMPUTED = (7.5, 4.0), (4.5, 2.0)
"""The same two numbers for gated layers, and for gated layers whose norms and activation functions
are computed again in the backward pass."""
TRANSIENT, TRANSIENT_FEED_FORWARD = 2, 2
"""Elements per token that one layer holds temporarily, in multiples of the hidden size and of the
feed-forward width: gradients in a backward pass, activations in an evaluation."""
MASKS = 3
"""Dropout masks, a byte per token, layer and hidden unit each."""
WIDE_NORMS = 2
"""fp32 outputs of layer norms in 16-bit training: elements per token, layer and hidden unit."""
CROSS_SOURCE, CROSS_TARGET = 2, 5
"""Further elements of a decoder's layer in multiples of the hidden size: keys and values for each
token of the source; queries, norms and outputs of its attention for each token of the target."""
LOGITS, EVAL_LOGITS = 5, 8
"""fp32 copies of a piece's logits that exist at once in training and in evaluation, as measured
where all logits were one piece."""
CONTEXT_GIB: dict[Device, float] = {"cuda": 1.0, "cpu": 0.9}
"""CUDA context and libraries, or on a CPU the Python process with torch loaded."""
WORKSPACE_GIB: dict[Device, float] = {"cuda": 0.9, "cpu": 0.0}
"""Workspaces of cuBLAS and cuDNN, and the data set on the device."""
SYNC_GIB: dict[Device, float] = {"cuda": 1.1, "cpu": 0.0}
"""NCCL's buffers, and the 16-bit copies of exchanged gradients."""
LOW_SHARE, HIGH_SHARE = 0.8, 1.3
"""Bounds of the activations relative to the formula, which ignores allocator and fused kernels."""
SURE_SHARE = 0.95
"""Share of weights, moments and workspaces in the low estimate, so that `too big` is certain."""
FRAGMENTATION = 1.08
"""Factor for allocator overhead in the high estimate."""
CHECKPOINTED_SHARE = 0.15
"""Share of the activations kept with gradient checkpointing: layer inputs and one whole layer."""

GIB = 2**30

Verdict = Literal["fits", "tight", "too big", "unknown"]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bounds of the peak memory of one worker."""

    low_gib: float
    expected_gib: float
    high_gib: float

    def verdict(self, memory_gib: float) -> Verdict:
        """Returns whether training fits into `memory_gib`.

        `too big` is certain; `tight` may run out of memory.
        """
        if self.low_gib > memory_gib:
            return "too big"
        return "fits" if self.high_gib <= memory_gib else "tight"


@dataclass(frozen=True, slots=True)
class StateSharding:
    """Settings that decide which part of the training state a worker holds."""

    workers: int = 1
    strategy: Strategy = "ddp"
    adapter: bool = False
    quantization: Quantization | None = None
    """Of the weights that an adapter leaves frozen."""
    gradient_checkpointing: bool = False
    compile: bool = False
    cpu_offload: bool = False
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)

    @property
    def recomputes(self) -> bool:
        """Whether compiled layers compute norms and activation functions again going backward."""
        return self.compile and self.adapter and not self.gradient_checkpointing


def estimate(
    shape: ModelShape,
    *,
    micro_batch_size: int,
    tokens: int,
    precision: Precision,
    device: Device,
    eval_batch: int = 128,
    sharding: StateSharding | None = None,
    target_tokens: int = 0,
) -> MemoryEstimate:
    """Estimate the peak memory of training on inputs of (micro_batch_size, tokens).

    With `target_tokens`, the layers of a decoder read targets of so many tokens, and the
    vocabulary is scored for these alone. Calibrated on an H200 with bert-base and a Llama of 1.1
    billion weights.
    """
    sharding = sharding or StateSharding()
    per_row = _bytes_per_row(shape, precision, sharding, tokens, target_tokens)
    scored = micro_batch_size * (target_tokens or tokens)
    is_in_pieces = shape.scores_vocabulary and scored * shape.vocabulary > PIECE_LOGITS
    activations = micro_batch_size * per_row + _logits(shape, LOGITS, scored, PIECE_LOGITS)
    fixed = CONTEXT_GIB[device] + WORKSPACE_GIB[device]
    fixed += SYNC_GIB[device] if sharding.workers > 1 else 0.0
    evaluation = _evaluation(shape, target_tokens or tokens, precision, eval_batch)
    fixed += (_state(shape, precision, sharding) + evaluation) / GIB
    if is_in_pieces and not sharding.adapter:  # a piece's gradient beside the sum of all
        fixed += shape.vocabulary * shape.hidden * 4 / GIB
    # steps that are not captured leave the memory of their activations to an evaluation
    shared = min(evaluation, activations) if shape.scores_vocabulary else 0.0
    return MemoryEstimate(
        low_gib=SURE_SHARE * (fixed - shared / GIB) + LOW_SHARE * activations / GIB,
        expected_gib=fixed + activations / GIB,
        high_gib=(fixed + HIGH_SHARE * activations / GIB) * FRAGMENTATION,
    )


def _state(shape: ModelShape, precision: Precision, sharding: StateSharding) -> float:
    """Returns the bytes of weights, gradients and moments; an adapter's weights are negligible."""
    element, weights = ELEMENT_BYTES[precision], shape.parameters
    if sharding.adapter:
        frozen = FROZEN_BYTES_PER_PARAMETER[precision]
        if sharding.quantization is None:
            return float(weights * frozen)
        head = shape.vocabulary * shape.hidden if shape.has_own_head else 0
        in_full = shape.embedding_parameters + head + shape.hidden * shape.intermediate
        in_few_bits = weights - shape.embedding_parameters - head
        return in_full * frozen + in_few_bits * QUANTIZED_BYTES_PER_PARAMETER[sharding.quantization]
    if sharding.strategy != "ddp":
        gathered = FROZEN_BYTES_PER_PARAMETER[precision] if sharding.strategy == "zero2" else 0
        whole = weights * STATE_BYTES_PER_PARAMETER + _moments(shape, sharding.optimizer)
        sharded = 0 if sharding.cpu_offload else whole / sharding.workers
        return float(sharded + weights * (gathered + element))
    wide = shape.embedding_parameters if element < 4 else weights  # embeddings stay fp32
    gradients = wide * 4 + (weights - wide) * element  # those that autograd allocates
    moments = _moments(shape, sharding.optimizer)
    return float(weights * STATE_BYTES_PER_PARAMETER + moments + gradients)


def _moments(shape: ModelShape, optimizer: OptimizerSpec) -> float:
    """Returns the bytes that an optimizer keeps besides weights and gradients."""
    if optimizer.name == "adafactor":
        return 0.0
    if optimizer.name == "sgd":
        return float(shape.parameters * MOMENT_BYTES) if optimizer.momentum_or_default else 0.0
    second = shape.embedding_parameters if optimizer.name == "muon" else shape.parameters
    return float((shape.parameters + second) * MOMENT_BYTES)


def _bytes_per_row(
    shape: ModelShape,
    precision: Precision,
    sharding: StateSharding,
    tokens: int,
    target_tokens: int,
) -> float:
    """Returns the bytes of activations per row: what the backward pass needs, and one layer's."""
    share = CHECKPOINTED_SHARE if sharding.gradient_checkpointing else 1.0
    layer = share * _bytes_per_layer(shape, precision, sharding)
    transient = _transient(shape, precision)
    if not target_tokens:
        return tokens * (shape.layers * layer + transient)
    hidden = share * shape.decoder_layers * shape.hidden * ELEMENT_BYTES[precision]
    source = (shape.layers - shape.decoder_layers) * layer + transient + CROSS_SOURCE * hidden
    target = shape.decoder_layers * layer + transient + CROSS_TARGET * hidden
    return tokens * source + target_tokens * target


def _bytes_per_layer(shape: ModelShape, precision: Precision, sharding: StateSharding) -> float:
    """Returns the bytes of a layer's activations per token that the backward pass needs."""
    element = ELEMENT_BYTES[precision]
    if shape.is_gated:
        kept = RECOMPUTED if sharding.recomputes else GATED
        return (kept[0] * shape.hidden + kept[1] * shape.intermediate) * element
    elements = ACTIVATIONS * shape.hidden + FEED_FORWARD * shape.intermediate
    wide = 4 * WIDE_NORMS if element < 4 else 0
    return elements * element + (MASKS + wide) * shape.hidden


def _transient(shape: ModelShape, precision: Precision) -> float:
    """Returns the bytes per token that one layer holds temporarily."""
    if shape.is_gated:
        return 0.0  # the constants of gated layers include it
    elements = TRANSIENT * shape.hidden + TRANSIENT_FEED_FORWARD * shape.intermediate
    return float(elements * ELEMENT_BYTES[precision])


def _evaluation(shape: ModelShape, tokens: int, precision: Precision, eval_batch: int) -> float:
    """Returns the bytes that an evaluation needs in addition to the training state."""
    if shape.scores_vocabulary:
        return _logits(shape, EVAL_LOGITS, eval_batch * tokens, EVAL_PIECE_LOGITS)
    return eval_batch * tokens * _transient(shape, precision)


def _logits(shape: ModelShape, copies: int, tokens: int, most: int) -> float:
    """Returns the bytes of `copies` of the fp32 logits of so many tokens, or of `most` logits.

    It is 0 for models that do not score the vocabulary.
    """
    if not shape.scores_vocabulary:
        return 0.0
    return float(copies * 4 * min(shape.vocabulary * tokens, most))
