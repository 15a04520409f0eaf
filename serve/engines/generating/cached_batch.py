"""Rows with places of their own in one key-value cache, written by captured CUDA graphs.

A step of all rows is one graph, which a host only starts, and takes its tokens from the device: it
runs while the host still reads the tokens before. Prompts are read in pieces, several in one graph.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from serve.engines.generating.adapters import NONE, HeldAdapter, name_of, slot_of
from serve.engines.generating.prefixes import LEAST, Ids, Prefixes, common
from serve.engines.generating.spans import Spans
from serve.engines.generating.token_batch import CacheTooSmallError, Prompt
from serve.engines.generating.token_graphs import (
    READ_ROWS,
    READ_TOKENS,
    STEP_ROWS,
    UNUSED,
    Inputs,
    TokenGraphs,
)


@dataclass(slots=True)
class _Row:
    start: int
    size: int
    """Places that it has taken."""
    used: int
    slot: int
    """Of its adapter."""


class CachedBatch:
    """Rows of tokens; each has places of its own in the cache of each layer."""

    name, looks_ahead = "captured", True

    def __init__(self, graphs: TokenGraphs, room: int) -> None:
        """Args: the model's graphs, and the tokens that their cache holds."""
        self.graphs = graphs
        self._spans, self._prefixes = Spans(UNUSED, UNUSED + room), Prefixes()
        self._rows: list[_Row] = []
        self._begun = 0
        """Prompts that have a place and are not complete."""

    @property
    def use(self) -> float:
        """Share of the cache that the rows may fill."""
        return 1 - self._spans.free / self._spans.size

    def clear(self) -> None:
        """Drops all rows and prompts."""
        self._spans, self._prefixes = Spans(UNUSED, UNUSED + self._spans.size), Prefixes()
        self._rows, self._begun, self.graphs.step_inputs.is_stale = [], 0, True

    def begin(
        self, ids: Sequence[int], most_tokens: int, adapter: HeldAdapter | None = None
    ) -> Prompt | None:
        """Gives a prompt its places; None while there is no room.

        Raises:
            CacheTooSmallError: if there never is.
        """
        if most_tokens > self._spans.size:
            raise CacheTooSmallError(most_tokens, self._spans.size)
        if len(self._rows) + self._begun == STEP_ROWS[-1]:
            return None
        if most_tokens > self._spans.largest:
            return None
        start, known = self._prefixes.longest(ids, name_of(adapter))
        goes_on = known and 2 * known > self._prefixes.size(start)  # not only a common beginning
        if goes_on and self._spans.take_at(start, most_tokens):
            prompt = Prompt(ids, most_tokens, adapter, start)
            prompt.read = prompt.taken_over = known
        else:
            free = self._spans.take(most_tokens)
            assert free is not None
            prompt = Prompt(ids, most_tokens, adapter, free)
        self._prefixes.forget(prompt.start, most_tokens)
        self._begun += 1
        return prompt

    def drop(self, prompts: Sequence[Prompt]) -> None:
        """Takes back the places of prompts that are not complete."""
        for prompt in prompts:
            self._spans.give_back(prompt.start, prompt.most_tokens)
        self._begun -= len(prompts)

    def read(self, prompts: Sequence[Prompt]) -> tuple[list[Prompt], torch.Tensor]:
        """Reads the next tokens of prompts; see `TokenBatch`.

        A prompt of which nothing was read waits for one with the same beginning that is being read,
        and takes its beginning over.
        """
        pieces = self._pieces(prompts)
        total = sum(count for _, count in pieces)
        graph = self.graphs.reading(total)
        graph.inputs.fill(**_packed(pieces, len(graph.inputs.ids)))
        graph.run()
        for prompt, count in pieces:
            prompt.read += count
        complete = [prompt for prompt, _ in pieces if prompt.read == len(prompt.ids)]
        # only the last piece may end within its prompt; another graph may overwrite the logits
        logits = graph.logits[: len(complete)].clone()
        for prompt in complete:
            self._prefixes.remember(prompt.ids, prompt.start, name_of(prompt.adapter))
            slot = slot_of(prompt.adapter)
            self._rows.append(_Row(prompt.start, prompt.most_tokens, prompt.read, slot))
        self._begun -= len(complete)
        self.graphs.step_inputs.is_stale |= bool(complete)
        return complete, logits

    def _pieces(self, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int]]:
        """Returns the prompts that are read next, with the number of their tokens."""
        left, pieces = READ_TOKENS[-1], list[tuple[Prompt, int]]()
        begun = list[tuple[Ids, HeldAdapter | None]]()
        for prompt in prompts:
            ids = np.asarray(prompt.ids, dtype=np.int64)
            if not prompt.is_being_read:
                self._take_over(prompt)
                # the last token is always read
                if any(
                    common(ids[:-1], other) > max(LEAST, prompt.read)
                    for other, adapter in begun
                    if adapter == prompt.adapter
                ):
                    continue
            prompt.is_being_read = True
            begun.append((ids, prompt.adapter))
            pieces.append((prompt, min(left, len(ids) - prompt.read)))
            left -= pieces[-1][1]
            if not left or len(pieces) == READ_ROWS:
                break
        return pieces

    def _take_over(self, prompt: Prompt) -> None:
        """Copies the beginning of a prompt, if another has more of it in the cache."""
        start, count = self._prefixes.longest(prompt.ids, name_of(prompt.adapter))
        if count <= prompt.read:
            return
        known, own = slice(start, start + count), slice(prompt.start, prompt.start + count)
        for cache in itertools.chain.from_iterable(self.graphs.caches.values()):
            cache[own] = cache[known]
        prompt.read = prompt.taken_over = count

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Adds a token to each row; see `TokenBatch`."""
        count = len(self._rows)
        graph = self.graphs.step(count)
        if graph.inputs.is_stale:
            self._tell(graph.inputs)
        graph.inputs.ids[:count].copy_(tokens)
        graph.run()
        for row in self._rows:
            row.used += 1
        return graph.logits[:count]

    def keep(self, places: Sequence[int]) -> None:
        """Keeps these rows alone, in this order."""
        if list(places) == list(range(len(self._rows))):
            return
        kept = set(places)
        for place, row in enumerate(self._rows):
            if place not in kept:
                self._spans.give_back(row.start, row.size)
        self._rows = [self._rows[place] for place in places]
        self.graphs.step_inputs.is_stale = True

    def _tell(self, inputs: Inputs) -> None:
        """Writes on the device where the rows are; those without a text write into no row."""
        unused = len(inputs.used) - len(self._rows)
        used = [row.used for row in self._rows] + [0] * unused
        starts = [row.start for row in self._rows] + [0] * (unused + 1)
        inputs.fill(
            positions=used,
            places=[start + count for start, count in zip(starts, used, strict=False)],
            starts=starts,
            used=[count + 1 for count in used],
            live=[1] * len(self._rows) + [0] * unused,
            slots=[row.slot for row in self._rows] + [NONE] * unused,
        )
        inputs.is_stale = False


def _packed(pieces: Sequence[tuple[Prompt, int]], tokens: int) -> dict[str, list[int]]:
    """Returns the inputs that read so many further tokens of prompts.

    What is left of `tokens` is a row of its own, which writes into no other.
    """
    ids, positions, places, slots = list[int](), list[int](), list[int](), list[int]()
    ends, starts, used, last = [0], list[int](), list[int](), list[int]()
    for prompt, count in pieces:
        behind = prompt.read + count
        ids += prompt.ids[prompt.read : behind]
        positions += range(prompt.read, behind)
        places += range(prompt.start + prompt.read, prompt.start + behind)
        slots += [slot_of(prompt.adapter)] * count
        ends.append(len(ids))
        starts.append(prompt.start)
        used.append(behind)
        last.append(len(ids) - 1)
    left = tokens - len(ids)
    rows = READ_ROWS + 1
    lacking = rows - len(pieces)
    return {
        "ids": ids + [0] * left,
        "positions": positions + [0] * left,  # the model may not have more
        "places": places + list(range(left)),
        "slots": slots + [NONE] * left,
        "ends": ends + [tokens] * lacking,
        "starts": starts + [0] * (lacking + 1),
        "used": used + [left] + [0] * (lacking - 1),
        "last": last + [0] * (READ_ROWS - len(pieces)),
    }
