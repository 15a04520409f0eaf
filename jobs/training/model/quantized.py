"""Frozen weights of linear layers in 4 or 8 bits, with bitsandbytes, which is imported when used.

Source: Dettmers et al., 2023, "QLoRA: Efficient Finetuning of Quantized LLMs" (nf4, with scales
that are quantized too), and Dettmers et al., 2022, "LLM.int8()" (int8).
"""

import copy
import functools
import importlib.util
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from jobs.errors import TrainingError
from jobs.spec.model import Quantization
from jobs.spec.train import Precision
from jobs.training.model.precision import AUTOCAST

PACKAGE = "bitsandbytes"
LARGEST_INT8 = 127


def check_installed() -> None:
    """Raises TrainingError if the package that quantizes is missing."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise TrainingError(
            f"model.adapter.quantization needs {PACKAGE}, which is not installed; pip install"
            " 'raywinnow[quantization]' on every node, or remove the field"
        )


def settings(kind: Quantization, precision: Precision) -> Any:
    """Returns what transformers quantizes a model with while it loads it."""
    if kind == "int8":
        logging.getLogger(f"{PACKAGE}.autograd").setLevel(logging.ERROR)  # it warns in each layer
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=AUTOCAST.get(precision, torch.float32),
    )


def settle_layers(model: torch.nn.Module) -> None:
    """Lets 4-bit layers on a CPU multiply by the weights that `whole_weights` yields.

    At the first forward pass in evaluation mode, bitsandbytes would lay them out anew for some CPUs
    (AVX-512 with bf16): with coarser scales, unreadable by `whole_weights`, and with an error where
    the number of outputs is not divisible by 32. On CPUs with AVX-512 it also takes wrong scales
    where blocks do not end with rows, in training too.
    """
    package = sys.modules.get(PACKAGE)  # not imported here: who quantizes has imported it
    if package is None:
        return
    for module in model.modules():
        if isinstance(module, package.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
            is_here = module.weight.device.type == "cpu"
            if is_here and module.in_features % module.weight.blocksize:
                module.forward = functools.partial(_multiply, module)


def _multiply(module: Any, rows: torch.Tensor) -> torch.Tensor:
    """The forward pass of a 4-bit layer, (…, inputs) to (…, outputs)."""
    dtype = module.compute_dtype or rows.dtype
    bias = None if module.bias is None else module.bias.to(dtype)
    found = torch.nn.functional.linear(rows.to(dtype), _dequantized(module).to(dtype), bias)
    return found.to(rows.dtype)


def _dequantized(module: Any) -> torch.Tensor:
    """Returns the weight of a 4-bit layer, (outputs, inputs), read as one row of blocks."""
    import bitsandbytes

    state = copy.copy(module.weight.quant_state)
    shape, state.shape = state.shape, torch.Size((1, state.shape.numel()))
    found: torch.Tensor = bitsandbytes.functional.dequantize_4bit(module.weight.data, state)
    return found.view(shape)


def is_quantized(module: torch.nn.Module) -> bool:
    """Returns whether a module is a quantized linear layer."""
    package = sys.modules.get(PACKAGE)
    kinds = (package.nn.Linear4bit, package.nn.Linear8bitLt) if package else ()
    return isinstance(module, kinds)


def whole_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the quantized weights of a model by their names, in fp32, (outputs, inputs)."""
    import bitsandbytes

    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            found = _dequantized(module)
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            held = module.state if module.state.CB is not None else module.weight
            found = held.CB.float() * (held.SCB.float()[:, None] / LARGEST_INT8)
        else:
            continue
        yield f"{name}.weight", found.float()
