"""Frozen weights of linear layers in 4 or 8 bits, with bitsandbytes, which is imported when used.

Source: Dettmers et al., 2023, "QLoRA: Efficient Finetuning of Quantized LLMs" (nf4, with scales
that are quantized too), and Dettmers et al., 2022, "LLM.int8()" (int8).
"""

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


def keep_layout(model: torch.nn.Module) -> None:
    """Keeps the layout of 4-bit weights in evaluations on a CPU.

    bitsandbytes would lay them out anew for some CPUs (AVX-512 with bf16) at the first forward pass
    in evaluation mode: with coarser scales, unreadable by `whole_weights`, and with an error where
    the number of outputs is not divisible by 32.
    """
    package = sys.modules.get(PACKAGE)  # not imported here: who quantizes has imported it
    if package is None:
        return
    for module in model.modules():
        if isinstance(module, package.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False


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
            weight = module.weight
            found = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            held = module.state if module.state.CB is not None else module.weight
            found = held.CB.float() * (held.SCB.float()[:, None] / LARGEST_INT8)
        else:
            continue
        yield f"{name}.weight", found.float()
