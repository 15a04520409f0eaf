"""Attention of tokens to a key-value cache in which each row has places of its own.

Keys and values are written where their rows continue, and each token attends to its own row alone:
prompts and single tokens of many rows stand in one packed row, without padding and without a mask.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

USUAL, CACHED, MEASURED = "sdpa", "winnow_cached", "winnow_cache_measured"
"""Names among the attentions of transformers: of PyTorch's with a mask, of this one, and of the
usual one while the layers' caches are measured."""
ARGUMENT = "cached_tokens"
"""The argument of a model, and of its attention, which holds `CachedTokens`."""
CHANGES = ("position_bias", "softcap", "s_aux")
"""Arguments of attention that change it otherwise than by a mask."""


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of several rows, and where each row is in the cache."""

    caches: dict[int, tuple[torch.Tensor, torch.Tensor]]
    """Keys and values by the layer's index, (places, heads, size) each."""
    places: torch.Tensor
    """Where each token's key and value are written, (tokens,) int64."""
    ends: torch.Tensor
    """Tokens before each row, and of all rows, (rows + 1,) int32."""
    starts: torch.Tensor
    """First place of each row in the cache, (rows + 1,) int32; the last is not read."""
    used: torch.Tensor
    """Places of each row, with those of these tokens, (rows,) int32."""
    most: int
    """Most tokens of a row."""
    longest: int
    """Most places of a row."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The size of a layer's cache."""

    heads: int
    size: int
    """Of a key, and of a value."""
    dtype: torch.dtype


class UnusualAttentionError(Exception):
    """A layer whose attention is not that of a cache in which rows have places of their own."""


_shapes: dict[int, LayerShape] | None = None
"""Where layers are put down while they are measured."""


@contextlib.contextmanager
def attending(model: Any, name: str) -> Iterator[None]:
    """Lets a model attend in another way inside."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def layer_shapes(model: Any, tokens: int) -> dict[int, LayerShape]:
    """Returns the size of each layer's cache, from a row of so many tokens.

    Raises:
        UnusualAttentionError: if a layer attends to more or less than the earlier tokens of its row
            and window.
    """
    global _shapes
    found: dict[int, LayerShape] = {}
    ids = torch.zeros(2, tokens, dtype=torch.int64, device=model.device)
    seen = torch.ones_like(ids)
    seen[0, 0] = 0  # or transformers makes no mask
    with attending(model, MEASURED):
        _shapes = found
        try:
            model(input_ids=ids, attention_mask=seen, use_cache=False)
        finally:
            _shapes = None
    if not found:
        raise UnusualAttentionError("its layers do not attend by transformers' functions")
    return found


def measure(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attends as usual, and puts down the layer's shape. Its signature is transformers'."""
    changed = [name for name in CHANGES if kwargs.get(name) is not None]
    if changed:
        raise UnusualAttentionError(f"its attention has {', '.join(changed)}")
    if not _is_causal(attention_mask, kwargs.get("sliding_window") or 0):
        raise UnusualAttentionError("its mask is another than that of earlier tokens in a window")
    assert _shapes is not None
    shape = LayerShape(key.shape[1], key.shape[3], key.dtype)
    if _shapes.setdefault(module.layer_idx, shape) != shape or key.shape != value.shape:
        raise UnusualAttentionError("its layers have several caches, or values of another size")
    attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )
    return attended


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
    """Writes keys and values into the cache, and attends to it. Its signature is transformers'.

    Queries, keys and values are (1, heads, tokens, size); the result is (1, tokens, heads, size).
    """
    tokens: CachedTokens = kwargs[ARGUMENT]
    keys, values = tokens.caches[module.layer_idx]
    keys.index_copy_(0, tokens.places, key[0].transpose(0, 1))
    values.index_copy_(0, tokens.places, value[0].transpose(0, 1))
    compute = _flash if _is_for_flash(query) else _row_by_row
    window = kwargs.get("sliding_window") or 0
    return compute(query[0].transpose(0, 1), keys, values, tokens, scaling, window)[None], None


def _is_for_flash(query: torch.Tensor) -> bool:
    return query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16)


def _flash(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tokens: CachedTokens,
    scaling: float | None,
    window: int,
) -> torch.Tensor:
    """Flash attention, by the operator: `varlen_attn` of torch 2.11 takes no `seqused_k`."""
    attended: torch.Tensor = torch.ops.aten._flash_attention_forward(
        query,
        keys,
        values,
        tokens.ends,
        tokens.starts,
        tokens.most,
        tokens.longest,
        dropout_p=0.0,
        is_causal=not window,
        return_debug_mask=False,
        scale=scaling,
        window_size_left=window - 1 if window else -1,
        window_size_right=0,
        seqused_k=tokens.used,
    )[0]
    return attended


def _row_by_row(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tokens: CachedTokens,
    scaling: float | None,
    window: int,
) -> torch.Tensor:
    """The same in plain PyTorch, for any device and precision."""
    attended = query.new_zeros(*query.shape[:2], values.shape[2])
    ends, starts, used = tokens.ends.tolist(), tokens.starts.tolist(), tokens.used.tolist()
    for row, count in enumerate(used):
        first, end = ends[row], ends[row + 1]
        if first == end:
            continue
        own = slice(starts[row], starts[row] + count)
        asked = torch.arange(count - (end - first), count, device=query.device)[:, None]
        distance = asked - torch.arange(count, device=query.device)[None]
        mask = (distance >= 0) & (distance < (window or count))
        found = torch.nn.functional.scaled_dot_product_attention(
            query[first:end].transpose(0, 1),
            keys[own].transpose(0, 1),
            values[own].transpose(0, 1),
            attn_mask=mask,
            scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        attended[first:end] = found.transpose(0, 1)
    return attended


def _is_causal(mask: torch.Tensor | None, window: int) -> bool:
    """Returns whether a mask (2, 1, tokens, tokens) is that of earlier tokens in a window.

    The first token of the first row is padding; no window is 0.
    """
    if mask is None or mask.dtype != torch.bool or mask.ndim != 4:
        return False
    places = torch.arange(mask.shape[-1], device=mask.device)
    distance = places[:, None] - places[None]
    seen = (distance >= 0) & (distance < (window or len(places)))
    padded = seen & (places[None] > 0)
    return bool((mask[1] == seen).all() and (mask[0, :, 1:] == padded[1:]).all())


for _name, _function in ((CACHED, attend), (MEASURED, measure)):
    # compiled layers call it as it is: it differs from layer to layer
    transformers.AttentionInterface.register(_name, torch.compiler.disable(_function))  # type: ignore[no-untyped-call]
transformers.AttentionMaskInterface.register(MEASURED, sdpa_mask)
