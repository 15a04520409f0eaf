"""What tasks share whose loss is on single tokens: the loss, and metrics that count tokens."""

import abc
import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training import token_losses
from jobs.training.task import Batch, TaskTraining
from jobs.training.token_losses import WHOLE, OutputLayer, TokenPrediction

LARGEST_EXPONENT = 700.0
"""Beyond it a perplexity is no number."""


class TokenTraining(TaskTraining):
    """A task that predicts tokens; what a model reads and predicts is the task's."""

    output_layer: OutputLayer = WHOLE

    @abc.abstractmethod
    def read(self, model: Any, batch: Batch) -> tuple[Mapping[str, Any], torch.Tensor]:
        """Returns the model's arguments in an evaluation, and the right tokens, (rows, tokens).

        They are IGNORED where the model's prediction does not count.
        """

    def tried(self, model: Any, batch: Batch, most_targets: int) -> "TokenTraining":
        """Returns the half that scores tokens in pieces, if the model allows it."""
        found = copy.copy(self)
        found.output_layer = token_losses.find(model, *self.read(model, batch)).bounded(
            most_targets
        )
        return found

    @property
    def remark(self) -> str:
        """Why a step takes more memory than forecast; empty if it does not."""
        return self.output_layer.remark

    def predict(self, model: Any, batch: Batch, *, judges: bool = False) -> TokenPrediction:
        """Returns what the model predicts in an evaluation."""
        return self.output_layer.predict(model, *self.read(model, batch), judges=judges)

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of each token that counts times its row's weight, summed."""
        return (self.predict(model, batch).losses * weights[:, None]).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of each row, (rows, 1)."""
        return self.predict(model, batch).row_means()

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """The summed loss, tokens predicted right, and tokens."""
        found = self.predict(model, batch, judges=True)
        mask = found.mask * counts[:, None]
        parts = [(found.losses * mask).sum(), (found.is_right * mask).sum(), mask.sum()]
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
