"""Which batch writes the answers of a language model: the fastest whose rows are the model's."""

import gc
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from jobs.errors import first_line
from jobs.training.proofs import window_of
from serve.engines.generating import cache_attention
from serve.engines.generating.adapters import AdapterSlots, HeldAdapter, slot_of
from serve.engines.generating.cached_batch import CachedBatch
from serve.engines.generating.padded_batch import PaddedBatch
from serve.engines.generating.token_batch import Prompt, TokenBatch
from serve.engines.generating.token_graphs import TokenGraphs, compile_layers, uncompile_layers

EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.1
"""Largest difference of logits in a batch from those alone, as a share of the largest logit: in
fp32, and in 16 bits."""
TRIED = ((9, 4), (6, 13), (3,))
"""Tokens of the prompts that join one after the other when a model is tried."""
TRIED_TOKENS = 64
"""Most tokens of a prompt that is tried, with those behind it."""
TRIED_ROOM = 2 * len(TRIED) * TRIED_TOKENS
"""Tokens that the cache of a trial holds at least."""
SHARE_OF_MEMORY = 0.4
"""Of the memory that is free when a replica starts, for the key-value cache."""
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container's limit of memory."""
BY_LENGTH = ("longrope", "dynamic")
"""Kinds of rotary positions that transformers computes from the longest row of a batch."""
MEASURED_TOKENS = 32
"""Tokens of a row in which a layer's attention is looked at, or beyond its window."""
WIDEST_WINDOW = 8192
"""Widest window that is looked at; its mask takes the square of it."""


@torch.inference_mode()
def choose(
    model: Any, *, rows: int, longest: int, adapters: AdapterSlots | None = None
) -> tuple[TokenBatch | None, str]:
    """Returns the batch that writes a model's answers, and why it is not the fastest kind.

    The reason is empty for the fastest kind of the model's device. There is no batch for a model
    whose rows change each other.

    Args:
        model: A causal model of transformers, on its device.
        rows: Most answers that are written together.
        longest: Most tokens of a conversation with its answer.
        adapters: Those of the model's layers.
    """
    reason = reason_for_one_by_one(model, adapters)
    if reason:
        return None, reason
    if model.device.type != "cuda" or model.dtype not in (torch.bfloat16, torch.float16):
        return PaddedBatch(model, padded_room(model, adapters), adapters), ""
    reasons = list[str]()
    for compiles in (True, False):
        batch, reason = _captured(model, rows, longest, adapters, compiles=compiles)
        if batch is not None:
            return batch, "; ".join(reasons)
        reasons.append(reason)
    return PaddedBatch(model, padded_room(model, adapters), adapters), "; ".join(reasons)


def reason_for_one_by_one(model: Any, adapters: AdapterSlots | None = None) -> str:
    """Returns why a model's rows may not join, leave and be written together; empty if they may.

    Logits of random tokens in a batch must be those of each row alone, without a cache. Models
    whose positions or chunks depend on the length of the longest row are refused by name.
    """
    config = model.config.get_text_config()
    kinds = {each.get("rope_type", each.get("type")) for each in _ropes(config)}
    if kinds & set(BY_LENGTH):
        return f"its positions ({', '.join(sorted(kinds & set(BY_LENGTH)))}) depend on other rows"
    if getattr(config, "attention_chunk_size", None):
        return "its attention is in chunks, which begin elsewhere in rows that are filled"
    try:
        right = is_right(model, PaddedBatch(model, 2 * TRIED_ROOM, adapters), adapters)
    except Exception as error:  # noqa: BLE001 - a model with another kind of cache, or no memory
        return f"its rows cannot share a cache: {first_line(error)}"
    return "" if right else "its rows change each other in a batch"


def _captured(
    model: Any, rows: int, longest: int, adapters: AdapterSlots | None, *, compiles: bool
) -> tuple[CachedBatch | None, str]:
    """Returns a batch of captured graphs, of compiled layers or others, or why there is none."""
    how = "compiled and captured" if compiles else "captured"
    batch: CachedBatch | None = None
    try:
        batch = cached_batch(model, rows=rows, longest=longest, captures=True, adapters=adapters)
        if compiles:  # not before its layers are measured, which would compile them twice
            compile_layers(model)
        if is_right(model, batch, adapters):
            batch.clear()
            batch.graphs.warm(rows)
            return batch, ""
        reason = "its logits in a cache of rows apart are others"
    except Exception as error:  # noqa: BLE001 - an attention that the kernel lacks, or no memory
        reason = first_line(error)
    uncompile_layers(model)
    if model.config._attn_implementation == cache_attention.CACHED:
        model.set_attn_implementation(cache_attention.USUAL)
    batch = None
    gc.collect()  # or the next cache would find less memory
    torch.cuda.empty_cache()
    return None, f"its steps are not {how}: {reason}"


@torch.inference_mode()
def cached_batch(
    model: Any,
    *,
    rows: int,
    longest: int,
    captures: bool,
    room: int | None = None,
    adapters: AdapterSlots | None = None,
) -> CachedBatch:
    """Returns a batch of rows with places of their own; the model then attends to them alone.

    Its cache holds `room` tokens, or as many as the rows need and the memory has.

    Raises:
        UnusualAttentionError: if the model's attention is another than that of such a cache.
    """
    if adapters is not None:
        adapters.reset()  # rows of one form may have been selected last
    if model.config._attn_implementation != cache_attention.USUAL:
        raise cache_attention.UnusualAttentionError("its attention is not PyTorch's")
    window, tokens = window_of(model.config), MEASURED_TOKENS
    if window and window < longest:
        if window > WIDEST_WINDOW:
            raise cache_attention.UnusualAttentionError(f"a window of {window} is not looked at")
        tokens += window
    shapes = cache_attention.layer_shapes(model, tokens)
    if room is None:
        each = sum(2 * shape.heads * shape.size for shape in shapes.values())
        fitting = SHARE_OF_MEMORY * free_memory(model.device) / (each * model.dtype.itemsize)
        room = max(TRIED_ROOM, min(int(fitting), rows * longest))
    model.set_attn_implementation(cache_attention.CACHED)
    graphs = TokenGraphs(model, shapes, room, captures=captures, most=longest, adapters=adapters)
    return CachedBatch(graphs, room)


@torch.inference_mode()
def padded_room(model: Any, adapters: AdapterSlots | None = None) -> int:
    """Returns the tokens of all rows that a padded cache may hold, from the free memory."""
    tried = PaddedBatch(model, TRIED_TOKENS * 2, adapters)
    tried.read([_begun(tried, [0])])
    # a step makes each layer's cache anew, and reading prompts takes memory too
    return int(SHARE_OF_MEMORY * free_memory(model.device) / tried.size_bytes)


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """Returns the settings of rotary positions, of each kind of layer where they differ."""
    names = ("rope_parameters", "rope_scaling")
    given = [value for name in names if isinstance(value := getattr(config, name, None), Mapping)]
    return [
        *given,
        *(part for each in given for part in each.values() if isinstance(part, Mapping)),
    ]


@torch.inference_mode()
def is_right(model: Any, batch: TokenBatch, adapters: AdapterSlots | None = None) -> bool:
    """Returns whether logits of rows that join, leave and grow are those of each row alone.

    Rows take turns with the adapters in memory, and with none.
    """
    turns = itertools.cycle([*(adapters.loaded if adapters else ()), None])
    draw = torch.Generator().manual_seed(0)
    most = model.get_input_embeddings().weight.shape[0]

    def drawn(count: int) -> list[int]:
        return [int(token) for token in torch.randint(most, (count,), generator=draw)]

    rows = list[tuple[list[int], HeldAdapter | None]]()
    for lengths in TRIED:
        prompts = [(drawn(length), next(turns)) for length in lengths]
        _read_whole(batch, [_begun(batch, ids, adapter) for ids, adapter in prompts])
        rows += prompts
        if len(rows) > 2:  # the second one leaves
            kept = [place for place in range(len(rows)) if place != 1]
            batch.keep(kept)
            rows = [rows[place] for place in kept]
        logits = torch.empty(0)
        for _ in range(2):
            tokens = drawn(len(rows))
            rows = [([*ids, token], own) for (ids, own), token in zip(rows, tokens, strict=True)]
            logits = batch.step(torch.tensor(tokens, device=model.device))
        for (ids, own), found in zip(rows, logits, strict=True):
            if adapters is not None:
                adapters.select(torch.tensor([[slot_of(own)]], device=model.device))
            if not _is_near(model, ids, found):
                return False
    return True


def _begun(batch: TokenBatch, ids: Sequence[int], adapter: HeldAdapter | None = None) -> Prompt:
    prompt = batch.begin(ids, TRIED_TOKENS, adapter)
    assert prompt is not None
    return prompt


def _read_whole(batch: TokenBatch, prompts: list[Prompt]) -> None:
    while prompts:
        complete, _ = batch.read(prompts)
        prompts = [prompt for prompt in prompts if prompt not in complete]


def _is_near(model: Any, ids: Sequence[int], found: torch.Tensor) -> bool:
    """Returns whether logits are those behind the tokens of a row alone."""
    bound = EXACT_BOUND if model.dtype == torch.float32 else ROUNDED_BOUND
    given = torch.tensor([ids], device=model.device)
    with (
        cache_attention.attending(model, _usual_of(model)),
        torch.compiler.set_stance("force_eager"),
    ):
        alone = model(input_ids=given, use_cache=False).logits[0, -1].float()
    return bool((found - alone).abs().max() <= bound * alone.abs().max())


def _usual_of(model: Any) -> str:
    """Returns the attention of a model without this cache."""
    name: str = model.config._attn_implementation
    return cache_attention.USUAL if name == cache_attention.CACHED else name


def free_memory(device: torch.device) -> int:
    """Returns the free bytes of a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _free_host_memory()


def _free_host_memory() -> int:
    """Returns the free bytes of the host, or those that its container may still take."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CGROUP / f"memory.{n}").read_text()) for n in ("max", "current"))
    except (OSError, ValueError):  # no such files, or `max`: there is no limit
        return free
    return max(0, min(free, limit - used))
