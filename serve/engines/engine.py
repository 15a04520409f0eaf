"""What every engine does."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from jobs.spec.serve import EngineName
from serve.engines.rows import Row

Logits = npt.NDArray[np.float32]
Landing = Callable[[], Logits]
"""Waits for a batch that was launched."""
Shape = tuple[int, int]
"""Rows and padded tokens of a batch."""


def softmax(logits: Logits) -> Logits:
    """Probabilities as [rows, labels]."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Logits = raised / raised.sum(axis=1, keepdims=True)
    return found


class Engine(Protocol):
    """A loaded model on one device."""

    name: EngineName

    def run(self, rows: Sequence[Row]) -> Logits:
        """Logits as [rows, labels]; a row's do not depend on its neighbours beyond rounding."""
        ...
