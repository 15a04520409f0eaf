"""Logits of a model for a few rows, alone, padded and packed, and whether they are equal."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.spec import task_registry
from jobs.spec.task import PER_TOKEN
from jobs.spec.train import Precision
from jobs.training.config import TrainingConfig
from jobs.training.data.tokens import (
    FILLERS,
    INPUT_IDS,
    POSITION_IDS,
    SAMPLE_ENDS,
    TokenSet,
    TokenStore,
    sample_ends,
)
from jobs.training.engine.inputs import attention_inputs
from jobs.training.model.base import token_embeddings
from jobs.training.model.precision import autocast
from jobs.training.task import training_of

FILLER_TOKENS, ROWS = 4, 2
"""Padding tokens at the end of a packed row, and packed rows of a batch."""
EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.1
"""Largest difference between equal logits, as a share of the largest logit: with 32-bit weights,
and with weights or matrix products in a smaller type."""
Tokens = NDArray[np.int64]


class LogitsCheck:
    """Computes logits of a model, and compares them up to rounding."""

    def __init__(self, model: Any, config: TrainingConfig, device: torch.device) -> None:
        self.model, self.config, self.device = model, config, device
        is_narrow = any(p.dtype != torch.float32 for p in model.parameters())
        self._precision = config.precision if is_narrow else "fp32"
        is_exact = not is_narrow and config.precision != "tf32"
        self._bound = EXACT_BOUND if is_exact else ROUNDED_BOUND

    def scores(self, tokens: TokenSet, rows: Any, width: int) -> torch.Tensor:
        """Returns the task's logits of whole rows padded to `width`, (rows, ...).

        If each token has its own, those of all tokens without padding, (tokens, labels).
        """
        # a store of these rows only: all rows are on the device already, or do not fit
        batch = TokenStore(tokens.taken(rows), self.device).gather(
            torch.arange(len(rows), device=self.device), width
        )
        with autocast(self._precision, self.device):
            logits = training_of(self.config.model.task).logits(self.model, batch)
        is_per_token = task_registry.find(self.config.model.task).activation in PER_TOKEN
        return (logits[batch["attention_mask"].bool()] if is_per_token else logits).cpu()

    def logits_alone(self, sample: Tokens) -> torch.Tensor:
        """Returns the logits of a row with a single sample, (tokens, vocabulary)."""
        ids = torch.from_numpy(sample)[None]
        return self._logits({INPUT_IDS: ids, "attention_mask": torch.ones_like(ids)})

    def logits_packed(self, samples: list[Tokens], pad_token_id: int) -> torch.Tensor:
        """Returns the logits of a packed row that ends with filler tokens, without the filler's.

        The shape is (tokens, vocabulary).
        """
        filler = np.full(FILLER_TOKENS, pad_token_id)
        filler_places = np.full(FILLER_TOKENS, FILLERS[POSITION_IDS])
        batch = _packed([*samples, filler], [*map(np.arange, map(len, samples)), filler_places])
        return self._logits(batch)[:-FILLER_TOKENS]

    def logits_by_samples(self, samples: list[Tokens]) -> torch.Tensor:
        """Returns the logits of a packed row without filler, when samples are attended apart.

        They are computed in the precision of training, which the kernel needs, and are (tokens,
        vocabulary).
        """
        batch = _packed(samples, list(map(np.arange, map(len, samples))))
        batch[SAMPLE_ENDS] = sample_ends(batch[POSITION_IDS], ROWS * len(samples))
        return self._logits(batch, self.config.precision)

    def changed(self, sample: Tokens) -> Tokens:
        """Returns the sample with another last token."""
        embeddings = token_embeddings(self.model)
        known = int(sample.max()) + 2 if embeddings is None else embeddings.shape[0]
        return np.append(sample[:-1], (sample[-1] + 1) % known)

    def are_equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Returns whether logits differ by rounding only."""
        return _difference(one, other) <= self._bound  # false for NaN

    def _logits(
        self, batch: dict[str, torch.Tensor], precision: Precision | None = None
    ) -> torch.Tensor:
        placed = {name: tensor.to(self.device) for name, tensor in batch.items()}
        with autocast(precision or self._precision, self.device):
            found = self.model(
                input_ids=placed[INPUT_IDS], use_cache=False, **attention_inputs(placed)
            )
        logits: torch.Tensor = found.logits[0].float().cpu()
        return logits


def are_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether logits of any two precisions differ by rounding only."""
    return _difference(one, other) <= ROUNDED_BOUND


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the largest difference as a share of the largest logit."""
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-6))


def _packed(samples: list[Tokens], places: list[Tokens]) -> dict[str, torch.Tensor]:
    """Returns a batch of equal rows, which hold samples with their places.

    There are several, because libraries may detect packed samples only in a batch of one row.
    """
    return {
        INPUT_IDS: torch.from_numpy(np.stack([np.concatenate(samples)] * ROWS)),
        POSITION_IDS: torch.from_numpy(np.stack([np.concatenate(places)] * ROWS)),
    }
