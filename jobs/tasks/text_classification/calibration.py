"""How far probabilities are from shares of right answers: sums by bins of the probability.

Source: Guo et al., On Calibration of Modern Neural Networks (2017), with 15 bins of equal width.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.quality import Curve, Point

BINS = 15
SUMS = 3 * BINS
"""Numbers that `sums` returns."""


def sums(probabilities: torch.Tensor, is_right: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns for each bin the answers, their summed probability, and the right ones, (SUMS,).

    All arguments are of shape (answers,); `counts` are 0 for answers that do not count.
    """
    chosen = (probabilities * BINS).long().clamp(0, BINS - 1)
    weights = counts.double()
    found = torch.zeros(3, BINS, dtype=torch.float64, device=weights.device)
    values = torch.stack([weights, probabilities.double() * weights, is_right.double() * weights])
    return found.index_add_(1, chosen, values).flatten()


def ece(totals: NDArray[np.float64]) -> float:
    """Returns the expected calibration error, from the sums of all answers."""
    counts, probabilities, right = totals.reshape(3, BINS)
    return float(np.abs(probabilities - right).sum() / max(1.0, counts.sum()))


def curve(title: str, totals: NDArray[np.float64]) -> Curve:
    """Returns the share of right answers over the mean probability of each bin with answers."""
    counts, probabilities, right = totals.reshape(3, BINS)
    points = tuple(
        Point(float(p / n), float(r / n), int(n))
        for n, p, r in zip(counts, probabilities, right, strict=True)
        if n
    )
    return Curve(title, "mean probability", "share that is right", points)
