"""GPU kernels in Triton, which PyTorch's builds for CUDA include."""

import importlib.util
import os
import shutil

import torch

BLOCK = 1024
"""Elements of one program; flat tensors consist of whole blocks."""
REDUCED = 8
"""Blocks that one program of a sum reads."""

_COMPILERS = (os.environ.get("CC") or "gcc", "clang")
available = importlib.util.find_spec("triton") is not None and any(map(shutil.which, _COMPILERS))
"""Whether Triton and the C compiler that it needs are installed: PyTorch's builds for CPUs lack
Triton, and small container images lack the compiler."""

if available:
    import triton
    import triton.language as tl

    @triton.jit
    def _adamw(  # type: ignore[no-untyped-def]  # noqa: PLR0913 - a kernel takes tensors one by one
        weights,
        first,
        second,
        gradients,
        copies,
        numbers,
        decays,
        rates,
        beta_1,
        beta_2,
        epsilon,
        HAS_COPIES: tl.constexpr,  # noqa: N803 - Triton's way to write constants
        BLOCK: tl.constexpr,  # noqa: N803
    ):
        refused = tl.load(numbers + 2)
        if refused == 0:
            lr = tl.load(numbers) * tl.load(rates + tl.program_id(0))
            divisor = tl.load(numbers + 1)
            correction_1 = tl.load(numbers + 3)
            correction_2 = tl.load(numbers + 4)
            place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            decay = tl.load(decays + tl.program_id(0))
            gradient = tl.load(gradients + place).to(tl.float32) / divisor
            weight = tl.load(weights + place)
            mean = tl.load(first + place)
            square = tl.load(second + place)
            mean += (gradient - mean) * (1 - beta_1)
            square = square * beta_2 + gradient * gradient * (1 - beta_2)
            weight *= 1 - lr * decay
            weight -= lr / correction_1 * mean / (tl.sqrt(square) / correction_2 + epsilon)
            tl.store(weights + place, weight)
            tl.store(first + place, mean)
            tl.store(second + place, square)
            if HAS_COPIES:
                tl.store(copies + place, weight.to(copies.dtype.element_ty))

    @triton.jit
    def _squares(  # type: ignore[no-untyped-def]
        values,
        sums,
        size,
        REDUCED: tl.constexpr,  # noqa: N803
    ):
        place = tl.program_id(0).to(tl.int64) * REDUCED + tl.arange(0, REDUCED)
        found = tl.load(values + place, mask=place < size, other=0.0).to(tl.float32)
        tl.store(sums + tl.program_id(0), tl.sum(found * found))


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of squares of a flat tensor in fp32, always added in the same order."""
    programs = triton.cdiv(values.numel(), BLOCK * REDUCED)
    sums = torch.empty(programs, dtype=torch.float32, device=values.device)
    _squares[(programs,)](values, sums, values.numel(), REDUCED=BLOCK * REDUCED)
    return sums.sum()


def adamw(  # noqa: PLR0913 - one tensor for each thing that AdamW keeps
    weights: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    gradients: torch.Tensor,
    copies: torch.Tensor | None,
    numbers: torch.Tensor,
    decays: torch.Tensor,
    rates: torch.Tensor,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Runs AdamW over flat tensors of one size, (elements,), in place.

    `weights`, `first` and `second` moments are fp32; `gradients` and the `copies` of the weights
    may be 16-bit. `numbers`, (5,), holds the learning rate, the divisor of gradients, 1 to skip the
    update, and the bias corrections 1 - beta_1^t and sqrt(1 - beta_2^t). `decays` and `rates`,
    (blocks,), hold the weight decay of each block and the factor of its learning rate.

    Source: Loshchilov and Hutter, 2019, "Decoupled weight decay regularization".
    """
    _adamw[(weights.numel() // BLOCK,)](
        weights,
        first,
        second,
        gradients,
        weights if copies is None else copies,
        numbers,
        decays,
        rates,
        betas[0],
        betas[1],
        epsilon,
        HAS_COPIES=copies is not None,
        BLOCK=BLOCK,
    )
