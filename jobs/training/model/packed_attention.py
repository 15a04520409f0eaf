"""Attention within the samples of packed rows, without a mask over all pairs of their tokens.

A mask over pairs makes a GPU compute attention between all tokens of a row and then drop most of
it. PyTorch's attention for sequences of different lengths computes none between samples.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch.nn.attention.varlen import varlen_attn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from jobs.spec.train import Precision
from jobs.training.model.adapter import unwrapped

USUAL, NAME = "sdpa", "winnow_packed"
"""Names among the attentions of transformers: of PyTorch's with a mask, and of this one."""
NARROW: tuple[Precision, ...] = ("bf16", "fp16")
"""Precisions that the kernel computes in."""
ENDS, ROOM = ("cu_seq_lens_q", "cu_seq_lens_k"), ("max_length_q", "max_length_k")
"""What transformers calls the ends of samples in tokens, and the longest sample, of queries and
keys."""
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""Lets several query heads share a key head; older versions of PyTorch take this unasked."""
_kernel: Any = varlen_attn
_compared: list[bool] | None = None
"""Whether the mask of each attention was that of the samples, while masks are compared."""


def is_offered(model: Any, precision: Precision, device: torch.device) -> bool:
    """Returns whether the kernel may stand for a model's attention, and runs on its device."""
    is_usual = unwrapped(model).config._attn_implementation == USUAL
    return is_usual and device.type == "cuda" and precision in NARROW


def inputs(ends: torch.Tensor, width: int) -> dict[str, Any]:
    """Returns the arguments of a model for samples of packed rows of `width` tokens."""
    return {**dict.fromkeys(ENDS, ends), **dict.fromkeys(ROOM, width)}


def use(model: Any, name: str = NAME) -> None:
    """Lets a model attend in this or another way of transformers."""
    unwrapped(model).set_attn_implementation(name)


@contextlib.contextmanager
def masks_compared() -> Iterator[list[bool]]:
    """Yields whether the mask of each attention inside was the one that the kernel stands for."""
    global _compared
    found: list[bool] = []
    _compared = found
    try:
        yield found
    finally:
        _compared = None


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attends within samples if the model was given their ends, else with the mask.

    So does attention of which a part is dropped out.

    Queries, keys and values are (rows, heads, tokens, size); the result is (rows, tokens, heads,
    size). Its signature is that of transformers' attention functions.
    """
    ends = kwargs.get(ENDS[0])
    if ends is None or dropout:  # the kernel drops nothing out
        options = {"dropout": dropout, "scaling": scaling, **kwargs}
        masked: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return masked
    window = kwargs.get("sliding_window") or 0
    if _compared is not None:
        is_plain = kwargs.get("position_bias") is None
        _compared.append(is_plain and _is_mask_of(attention_mask, ends, window))
    rows, _, tokens, _ = query.shape
    is_cast = torch.is_autocast_enabled(query.device.type)
    dtype = torch.get_autocast_dtype(query.device.type) if is_cast else query.dtype
    flat = (each.transpose(1, 2).flatten(0, 1).to(dtype) for each in (query, key, value))
    room = kwargs[ROOM[0]]
    options = {"scale": scaling, "window_size": (window - 1, 0), **GROUPED}
    attended: torch.Tensor = _kernel(*flat, ends, ends, room, room, **options)
    return attended.view(rows, tokens, *attended.shape[1:]), None


def _is_mask_of(mask: torch.Tensor | None, ends: torch.Tensor, window: int) -> bool:
    """Returns whether a mask lets a token see itself and earlier ones of its sample and window.

    It is (rows, 1, tokens, tokens) and true where a token is seen; no window is 0.
    """
    if mask is None or mask.dtype != torch.bool or mask.ndim != 4:
        return False
    rows, _, tokens, _ = mask.shape
    places = torch.arange(tokens, device=mask.device)
    every = torch.arange(rows * tokens, device=mask.device)
    sample = torch.bucketize(every, ends[1:].long(), right=True).view(rows, 1, tokens)
    distance = places[:, None] - places[None]
    seen = (sample[..., :, None] == sample[..., None, :]) & (distance >= 0)
    if window:
        seen &= distance < window
    return bool((seen == mask).all())


transformers.AttentionInterface.register(NAME, attend)
transformers.AttentionMaskInterface.register(NAME, sdpa_mask)
