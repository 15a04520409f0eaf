"""Rows that are filled on the left, so that all of them end at the same place of the cache.

It runs every model whose rows do not change each other, on any device. Prompts join the batch and
answers leave it between two tokens.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from serve.engines.generating.adapters import AdapterSlots, HeldAdapter, slot_of
from serve.engines.generating.token_batch import Prompt

SLACK = 64
"""Places that all rows leave empty before they are taken out of the cache."""
READ_AT_ONCE = 2048
"""Tokens of prompts that are read between two tokens of the others, unless one prompt has more."""


class PaddedBatch:
    """Rows of tokens with their key-value cache; a row is known by its place."""

    name, looks_ahead = "torch", False

    def __init__(self, model: Any, room: int, adapters: AdapterSlots | None = None) -> None:
        """Args: a causal model of transformers, and the tokens of all rows that the cache holds.

        `adapters` are those of the model's layers.
        """
        self._model, self._room, self._adapters = model, room, adapters
        self._takes = inspect.signature(model.forward).parameters
        self.clear()

    def clear(self) -> None:
        """Drops all rows and prompts."""
        self._begun: list[Prompt] = []
        self._cache = transformers.DynamicCache()
        self._mask = torch.zeros(0, 0, dtype=torch.int64, device=self._model.device)
        self._most: list[int] = []
        self._slots: list[int] = []
        """Slot of each row's adapter."""

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

    @property
    def use(self) -> float:
        """Share of the cache that the rows may fill."""
        return self._tokens(self._held) / self._room

    @property
    def _held(self) -> list[int]:
        """Most tokens of each row and of each prompt that has begun."""
        return [*self._most, *(prompt.most_tokens for prompt in self._begun)]

    @staticmethod
    def _tokens(rows: Sequence[int]) -> int:
        """Returns the places of rows with so many tokens at most."""
        return len(rows) * (max(rows, default=0) + SLACK)

    def begin(
        self, ids: Sequence[int], most_tokens: int, adapter: HeldAdapter | None = None
    ) -> Prompt | None:
        """Gives a prompt its place; None while there is no room. Alone, any prompt has room."""
        if self._held and self._tokens([*self._held, most_tokens]) > self._room:
            return None
        self._begun.append(Prompt(ids, most_tokens, adapter))
        return self._begun[-1]

    def drop(self, prompts: Sequence[Prompt]) -> None:
        """Takes back the places of prompts that are not read."""
        self._begun = [each for each in self._begun if each not in prompts]

    def read(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], torch.Tensor]:
        """Reads the first prompts whole, and adds a row for each at the end; see `TokenBatch`."""
        count, width = 1, len(prompts[0].ids)
        for prompt in prompts[1:]:
            width = max(width, len(prompt.ids))
            if width * (count + 1) > READ_AT_ONCE:
                break
            count += 1
        first = list(prompts[:count])
        logits = self._join([prompt.ids for prompt in first], [slot_of(p.adapter) for p in first])
        self._most += [prompt.most_tokens for prompt in first]
        for prompt in first:
            prompt.read = len(prompt.ids)
        self.drop(first)
        return first, logits

    def _join(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> torch.Tensor:
        """Adds rows; returns the logits of the token behind each, (prompts, vocabulary)."""
        width, device = max(map(len, prompts)), self._model.device
        filled = [[*[0] * (width - len(ids)), *ids] for ids in prompts]
        known = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        mask, cache = torch.tensor(known, device=device), transformers.DynamicCache()
        logits = self._run(torch.tensor(filled, device=device), mask, cache, slots)
        if not self.rows:
            self._mask, self._cache, self._slots = mask, cache, list(slots)
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
        self._slots += slots
        return logits

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Adds a token to each row; see `TokenBatch`."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        return self._run(tokens[:, None], self._mask, self._cache, self._slots)

    def keep(self, places: Sequence[int]) -> None:
        """Keeps these rows alone, in this order."""
        if not places:
            begun = self._begun
            self.clear()
            self._begun = begun
            return
        if list(places) == list(range(self.rows)):
            return
        self._most = [self._most[place] for place in places]
        self._slots = [self._slots[place] for place in places]
        index = torch.tensor(places, device=self._mask.device)
        self._mask = self._mask.index_select(0, index)
        empty = int(self._mask.argmax(dim=1).min())
        first = empty if empty >= SLACK else 0
        self._mask = self._mask[:, first:]
        for layer in self._cache.layers:
            layer.keys = layer.keys.index_select(0, index)[:, :, first:]
            layer.values = layer.values.index_select(0, index)[:, :, first:]

    def _run(
        self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, slots: Sequence[int]
    ) -> torch.Tensor:
        if self._adapters is not None:
            self._adapters.select(torch.tensor(slots, device=ids.device)[:, None])
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
