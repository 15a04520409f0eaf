"""Proves on a few rows, before the first step, what the loss of a language model relies on.

A token's logits depend on its own sample's earlier tokens alone, whether the sample stands alone or
shares a row with others.
"""

import dataclasses
from typing import Any

import numpy as np
import torch

from jobs.errors import ModelError, first_line
from jobs.training.config import TrainingConfig
from jobs.training.data import packing
from jobs.training.data.corpus import Corpus
from jobs.training.data.tokens import INPUT_IDS, POSITION_IDS, TokenSet
from jobs.training.engine.objective import attention_inputs
from jobs.training.model.precision import autocast
from jobs.training.world import World

LENGTHS = (17, 24, 20)
"""Tokens of the samples that share the row; the first is longer where the model has a window."""
FILLER_TOKENS = 4
"""Tokens of padding at the end of the row."""
BEYOND_WINDOW = 16
"""By how many tokens the longest sample exceeds the model's attention window."""
WINDOW_FIELDS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
"""Names under which configurations of transformers keep the width of local attention."""
EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.15
"""Largest difference between logits that ought to be equal, in standard deviations of all logits:
with 32-bit weights, and with weights or products in a smaller type."""


def packed_where_proven(corpus: Corpus, model: Any, config: TrainingConfig, world: World) -> Corpus:
    """Packs the training rows of a causal-lm job, or returns them single with the reason.

    Raises:
        ModelError: if a token's logits depend on later tokens even in a row of one sample.
    """
    rows = _Rows(model, corpus.train, config, world.device)
    model.eval()
    try:
        with torch.no_grad(), autocast(rows.precision, world.device):
            leak, refusal = rows.leak_alone(), ""
            if config.data.packing and leak <= rows.bound:
                refusal = rows.refusal_packed()
    finally:
        model.train()
    # every worker must lay out the same rows
    leak, refusal = world.gather((leak, refusal))[0]
    if leak > rows.bound:
        raise ModelError(
            f"{config.model.base} lets a token see later ones, as encoders do, so it cannot be"
            " trained as causal-lm; choose a decoder such as Llama, Qwen or GPT-2"
        )
    if not config.data.packing or refusal:
        return dataclasses.replace(corpus, not_packed=refusal)
    packed = packing.pack(corpus.train, config.data.max_length)
    return dataclasses.replace(corpus, train=packed)


class _Rows:
    """Rows made of the first training tokens, and the logits that a model gives them."""

    def __init__(
        self, model: Any, tokens: TokenSet, config: TrainingConfig, device: torch.device
    ) -> None:
        self._model, self._device = model, device
        is_narrow = any(p.dtype != torch.float32 for p in model.parameters())
        self.precision = config.precision if is_narrow else "fp32"
        is_exact = not is_narrow and config.precision != "tf32"
        self.bound = EXACT_BOUND if is_exact else ROUNDED_BOUND
        window = _window(model.config)
        capacity = config.data.max_length
        longest = min(window + BEYOND_WINDOW, capacity) if 0 < window < capacity else LENGTHS[0]
        lengths = np.array([longest, *LENGTHS[1:]])
        ids = np.resize(tokens.columns[INPUT_IDS], int(lengths.sum()))
        self._samples = np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])
        self._filler = np.full(FILLER_TOKENS, tokens.pad_token_id)
        self._vocabulary = model.get_input_embeddings().weight.shape[0]

    def leak_alone(self) -> float:
        """How far a later token moves the logits of earlier ones in a row of one sample."""
        sample = self._samples[1]
        before, after = self._alone(sample), self._alone(self._changed(sample))
        return self._difference(before[:-1], after[:-1])

    def refusal_packed(self) -> str:
        """Why samples must not share a row; empty if each gets there the logits it has alone."""
        first, second, third = self._samples
        try:
            whole = self._packed([first, second, third])
            moved = self._packed([first, self._changed(second), third])
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            return f"the model takes no positions of samples ({first_line(error)})"
        others = np.ones(len(whole), dtype=bool)
        others[len(first) + len(second) - 1] = False
        if self._difference(whole[others], moved[others]) > self.bound:
            return "samples that share a row see each other in this model"
        alone = torch.cat([self._alone(sample) for sample in self._samples])
        if self._difference(whole, alone) > self.bound:
            return "this model scores samples that share a row otherwise than samples alone"
        return ""

    def _changed(self, sample: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.append(sample[:-1], (sample[-1] + 1) % self._vocabulary)

    def _alone(self, sample: np.ndarray[Any, Any]) -> torch.Tensor:
        ids = torch.from_numpy(sample)[None].to(self._device)
        return self._logits({INPUT_IDS: ids, "attention_mask": torch.ones_like(ids)})

    def _packed(self, samples: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        """Logits of all tokens of a row that ends with filler tokens, but for those."""
        filled = [*samples, self._filler]
        places = [*map(np.arange, map(len, samples)), np.zeros(FILLER_TOKENS, np.int64)]
        batch = {
            INPUT_IDS: torch.from_numpy(np.concatenate(filled))[None].to(self._device),
            POSITION_IDS: torch.from_numpy(np.concatenate(places))[None].to(self._device),
        }
        return self._logits(batch)[:-FILLER_TOKENS]

    def _logits(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        found = self._model(
            input_ids=batch[INPUT_IDS], use_cache=False, **attention_inputs(batch)
        ).logits[0]
        logits: torch.Tensor = found.float().cpu()
        return logits

    @staticmethod
    def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
        """Largest difference of two logits in standard deviations; infinite if not a number."""
        difference = float((one - other).abs().max() / one.std())
        return difference if np.isfinite(difference) else float("inf")


def _window(config: Any) -> int:
    """Tokens that local attention reaches back; 0 if every layer sees all."""
    text = config.get_text_config()
    found = [getattr(text, name, None) for name in WINDOW_FIELDS]
    return min((value for value in found if isinstance(value, int) and value > 0), default=0)
