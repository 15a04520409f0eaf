"""What tasks share whose loss is on single tokens: the loss, and metrics that count tokens."""

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.task import Batch, TaskTraining

LARGEST_EXPONENT = 700.0
"""Beyond it a perplexity is no number."""


class TokenTraining(TaskTraining):
    """A task that predicts tokens; what a model reads and predicts is the task's."""

    @abc.abstractmethod
    def predict(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, 1 where it counts, and whether the best guess is right; each (rows, tokens)."""

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each token that counts times its row's weight, summed."""
        losses, mask, _ = self.predict(model, batch)
        return (losses * mask * weights[:, None]).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of each row, (rows, 1)."""
        losses, mask, _ = self.predict(model, batch)
        return ((losses * mask).sum(dim=1) / mask.sum(dim=1))[:, None]

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss, tokens predicted right, and tokens."""
        losses, mask, right = self.predict(model, batch)
        mask = mask * counts[:, None]
        return torch.stack([(losses * mask).sum(), (right * mask).sum(), mask.sum()]).double()

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Token accuracy, perplexity and the mean loss of a token."""
        loss, right, tokens = sums.tolist()
        mean = loss / max(1.0, tokens)
        return {
            "token_accuracy": right / max(1.0, tokens),
            "perplexity": math.exp(min(mean, LARGEST_EXPONENT)),
            "loss": mean,
        }
