"""Ordinal regression in torch: one output for each step between two levels.

Each output is the logit of "the level is above this step", so that the sum of their probabilities
rises with the level. Source: Frank and Hall, A Simple Approach to Ordinal Classification (2001).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.tasks.text_classification.training import ClassificationTraining
from jobs.training.task import Batch


class OrdinalTraining(ClassificationTraining):
    """Rows are read and encoded as for text classification; what follows differs."""

    has_labels = False  # an output stands for a step between two labels
    has_quality = False  # so the tables of a classifier's report do not suit it

    def configure(self, config: Any, label_names: Sequence[str]) -> None:
        """An output for each step between two levels."""
        config.num_labels = len(label_names) - 1
        config.problem_type = "multi_label_classification"
        steps = {index: f"above {name}" for index, name in enumerate(label_names[:-1])}
        config.id2label, config.label2id = steps, {name: index for index, name in steps.items()}

    def loss(self, model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy of each row's steps times the row's weight, summed."""
        return (self._row_losses(self.logits(model, batch), batch) * weights).sum()

    def scores(self, model: Any, batch: Batch) -> torch.Tensor:
        """The probability that the level is above each step, (rows, levels - 1)."""
        return self.logits(model, batch).sigmoid()

    def sums(
        self, model: Any, batch: Batch, counts: torch.Tensor, label_names: Sequence[str]
    ) -> torch.Tensor:
        """Summed loss and error in levels, rows that are right and right within one, and rows."""
        logits = self.logits(model, batch)
        error = (level_of(logits.sigmoid()) - batch["labels"]).abs()
        each = (self._row_losses(logits, batch), error, error == 0, error <= 1)
        found = [(values * counts).sum().double() for values in each]
        return torch.stack([*found, counts.sum().double()])

    def metrics(self, sums: NDArray[np.float64], label_names: Sequence[str]) -> dict[str, float]:
        """Mean absolute error in levels, share of right rows, and of those off by one at most."""
        *values, rows = sums.tolist()
        names = ("loss", "mae", "accuracy", "within_one")
        return {name: value / max(1.0, rows) for name, value in zip(names, values, strict=True)}

    @staticmethod
    def _row_losses(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        steps = torch.arange(logits.shape[1], device=logits.device)
        above = (batch["labels"][:, None] > steps).float()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, above, reduction="none"
        )
        return losses.sum(dim=1)


TRAINING = OrdinalTraining()


def level_of(probabilities: torch.Tensor) -> torch.Tensor:
    """The index of each row's level, (rows,): as many steps as it is rather above."""
    return (probabilities > 0.5).sum(dim=1)
