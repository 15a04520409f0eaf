"""The scores of all evaluation rows, gathered over the workers once in an evaluation."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.data.batches import FILLER, Indices
from jobs.training.world import World

Scores = NDArray[np.float32]
"""(rows, scores), in the order of the rows."""


class OneForward:
    """A model that computes one batch once, for whoever asks for its outputs again.

    It is made for each batch; every call must have the same inputs.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._outputs = model, None

    def __call__(self, **inputs: Any) -> Any:
        """Returns the model's outputs."""
        if self._outputs is None:
            self._outputs = self._model(**inputs)
        return self._outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class GatheredScores:
    """Collects this worker's scores on its device, and those of all workers at the end."""

    def __init__(self) -> None:
        self._rows: list[Indices] = []
        self._scores: list[torch.Tensor] = []

    def add(self, rows: Indices, scores: torch.Tensor) -> None:
        """Keeps the scores of a batch, (rows, scores), without waiting for the device."""
        self._rows.append(rows)
        self._scores.append(scores.float())

    def of_all(self, world: World, count: int) -> Scores:
        """Returns the scores of all `count` rows. All workers must call this."""
        rows = np.concatenate(self._rows)
        own = torch.cat(self._scores).cpu().numpy()
        is_real = rows != FILLER
        found = np.zeros((count, own.shape[1]), np.float32)
        for part, scores in world.gather((rows[is_real], own[is_real])):
            found[part] = scores
        return found
