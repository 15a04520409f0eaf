"""What tasks share whose loss is on single tokens: the loss, and metrics that count tokens."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.task import Batch, TaskTraining

LARGEST_EXPONENT = 700.0
"""Beyond it a perplexity is no number."""


@dataclass(frozen=True, slots=True)
class TokenPrediction:
    """What a model predicts of the tokens of a batch."""

    losses: torch.Tensor
    """(rows, tokens)."""
    mask: torch.Tensor
    """(rows, tokens): 1 for tokens that count, else 0."""
    logits: torch.Tensor
    """(rows, tokens, vocabulary)."""
    targets: torch.Tensor
    """(rows, tokens): the right tokens."""


class TokenTraining(TaskTraining):
    """A task that predicts tokens; what a model reads and predicts is the task's."""

    @abc.abstractmethod
    def predict(self, model: Any, batch: Batch) -> TokenPrediction:
        """What the model predicts of the tokens of a batch."""

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each token that counts times its row's weight, summed."""
        found = self.predict(model, batch)
        return (found.losses * found.mask * weights[:, None]).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of each row, (rows, 1)."""
        found = self.predict(model, batch)
        return ((found.losses * found.mask).sum(dim=1) / found.mask.sum(dim=1))[:, None]

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss, tokens predicted right, and tokens."""
        found = self.predict(model, batch)
        right, mask = found.logits.argmax(dim=-1) == found.targets, found.mask * counts[:, None]
        parts = [(found.losses * mask).sum(), (right * mask).sum(), mask.sum()]
        return torch.stack(parts).double()

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Token accuracy, perplexity and the mean loss of a token."""
        loss, right, tokens = sums.tolist()
        mean = loss / max(1.0, tokens)
        return {
            "token_accuracy": right / max(1.0, tokens),
            "perplexity": math.exp(min(mean, LARGEST_EXPONENT)),
            "loss": mean,
        }
