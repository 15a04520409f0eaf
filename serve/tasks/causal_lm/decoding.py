"""Answers of a language model that are written together, a token of each at a time.

Prompts join the batch and answers leave it between two tokens. Rows are filled on the left, so that
all of them end at the same place of the key-value cache.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers

from jobs.errors import first_line

EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.1
"""Largest difference of logits in a batch from those alone, as a share of the largest logit: in
fp32, and in 16 bits."""
TRIED = ((9, 4), (6, 13), (3,))
"""Tokens of the prompts that join one after the other when a model is tried."""
SHARE_OF_MEMORY = 0.4
"""Of the memory that is free when a replica starts, for the key-value cache."""
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container's limit of memory."""
BY_LENGTH = ("longrope", "dynamic")
"""Kinds of rotary positions that transformers computes from the longest row of a batch."""
SLACK = 64
"""Places that all rows leave empty before they are taken out of the cache."""


class Decoding:
    """Rows of tokens with their key-value cache; a row is known by its place."""

    def __init__(self, model: Any) -> None:
        """Args: model: A causal model of transformers."""
        self._model = model
        self._takes = inspect.signature(model.forward).parameters
        self._clear()

    def _clear(self) -> None:
        self._cache = transformers.DynamicCache()
        self._mask = torch.zeros(0, 0, dtype=torch.int64, device=self._model.device)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._mask)

    @property
    def width(self) -> int:
        """Places of each row in the cache, with those that are empty."""
        return self._mask.shape[1]

    @property
    def size_bytes(self) -> int:
        """Memory of the cache."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._cache.layers)

    def join(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Reads prompts and adds a row for each at the end.

        Returns the logits of the token behind each prompt in fp32, (prompts, vocabulary).
        """
        width, device = max(map(len, prompts)), self._model.device
        filled = [[*[0] * (width - len(ids)), *ids] for ids in prompts]
        known = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        mask, cache = torch.tensor(known, device=device), transformers.DynamicCache()
        logits = self._run(torch.tensor(filled, device=device), mask, cache)
        if not self.rows:
            self._mask, self._cache = mask, cache
            return logits
        lacking = mask.shape[1] - self.width
        pairs = list(zip(self._cache.layers, cache.layers, strict=True))
        joined = [
            (
                _joined(own.keys, new.keys, lacking, dim=2),
                _joined(own.values, new.values, lacking, dim=2),
            )
            for own, new in pairs
        ]
        self._mask = _joined(self._mask, mask, lacking, dim=1)
        for (own, _), (keys, values) in zip(pairs, joined, strict=True):  # nothing here can fail
            own.keys, own.values = keys, values
        return logits

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Adds a token to each row.

        Returns the logits of the token behind it in fp32, (rows, vocabulary).
        """
        ids = torch.tensor(tokens, device=self._model.device)[:, None]
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        return self._run(ids, self._mask, self._cache)

    def keep(self, places: Sequence[int]) -> None:
        """Keeps these rows alone, in this order."""
        if not places:
            self._clear()
            return
        index = torch.tensor(places, device=self._mask.device)
        self._mask = self._mask.index_select(0, index)
        empty = int(self._mask.argmax(dim=1).min())
        first = empty if empty >= SLACK else 0
        self._mask = self._mask[:, first:]
        for layer in self._cache.layers:
            layer.keys = layer.keys.index_select(0, index)[:, :, first:]
            layer.values = layer.values.index_select(0, index)[:, :, first:]

    def _run(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> torch.Tensor:
        given: dict[str, Any] = {"attention_mask": mask, "past_key_values": cache}
        if "position_ids" in self._takes:
            places = (mask.cumsum(dim=1) - 1).clamp(min=0)
            given["position_ids"] = places[:, -ids.shape[1] :]
        if "logits_to_keep" in self._takes:
            given["logits_to_keep"] = 1
        logits: torch.Tensor = self._model(input_ids=ids, use_cache=True, **given).logits
        return logits[:, -1].float()


def _joined(own: torch.Tensor, new: torch.Tensor, lacking: int, *, dim: int) -> torch.Tensor:
    """Returns the rows of both, filled on the left; `own` lacks so many places, or `new` if < 0."""
    return torch.cat([_filled(own, lacking, dim), _filled(new, -lacking, dim)])


def _filled(values: torch.Tensor, places: int, dim: int) -> torch.Tensor:
    behind = [0, 0] * (values.ndim - 1 - dim)
    return torch.nn.functional.pad(values, (*behind, max(0, places), 0))


@torch.inference_mode()
def room(model: Any) -> int:
    """Returns the tokens of all rows that a key-value cache may hold, from the free memory."""
    tried = Decoding(model)
    tried.join([[0]])
    if model.device.type == "cuda":
        free = torch.cuda.mem_get_info(model.device)[0]
    else:
        free = _free_host_memory()
    # a step makes each layer's cache anew, and reading prompts takes memory too
    return int(SHARE_OF_MEMORY * free / tried.size_bytes)


def _free_host_memory() -> int:
    """Returns the free bytes of the host, or those that its container may still take."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CGROUP / f"memory.{n}").read_text()) for n in ("max", "current"))
    except (OSError, ValueError):  # no such files, or `max`: there is no limit
        return free
    return max(0, min(free, limit - used))


@torch.inference_mode()
def reason_for_one_by_one(model: Any) -> str:
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
        return "" if _is_right(model) else "its rows change each other in a batch"
    except Exception as error:  # noqa: BLE001 - a model with another kind of cache, or no memory
        return f"its rows cannot share a cache: {first_line(error)}"


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """Returns the settings of rotary positions, of each kind of layer where they differ."""
    names = ("rope_parameters", "rope_scaling")
    given = [value for name in names if isinstance(value := getattr(config, name, None), Mapping)]
    return [
        *given,
        *(part for each in given for part in each.values() if isinstance(part, Mapping)),
    ]


def _is_right(model: Any) -> bool:
    draw = torch.Generator().manual_seed(0)
    most = model.get_input_embeddings().weight.shape[0]

    def drawn(count: int) -> list[int]:
        return [int(token) for token in torch.randint(most, (count,), generator=draw)]

    batch, rows = Decoding(model), list[list[int]]()
    bound = EXACT_BOUND if model.dtype == torch.float32 else ROUNDED_BOUND
    for lengths in TRIED:
        prompts = [drawn(length) for length in lengths]
        batch.join(prompts)
        rows += prompts
        if len(rows) > 2:  # the second one leaves
            kept = [place for place in range(len(rows)) if place != 1]
            batch.keep(kept)
            rows = [rows[place] for place in kept]
        logits = torch.empty(0)
        for _ in range(2):
            tokens = drawn(len(rows))
            rows = [[*ids, token] for ids, token in zip(rows, tokens, strict=True)]
            logits = batch.step(tokens)
        for ids, found in zip(rows, logits, strict=True):
            given = torch.tensor([ids], device=model.device)
            alone = model(input_ids=given, use_cache=False).logits[0, -1].float()
            if not (found - alone).abs().max() <= bound * alone.abs().max():
                return False
    return True
